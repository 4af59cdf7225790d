"""What ``terazi up`` says on stderr: lines for people, or one object each, whoever says them."""

import json
import logging

import pytest

from terazi.cli.up import TerminalReporter
from terazi.service.log_output import JsonLine


def test_all_lines_are_objects_where_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = TerminalReporter()
    record = logging.makeLogRecord({"name": "terazi.x", "levelname": "WARNING", "msg": "b\x1b[2J", "pid": 3})
    reporter.say("a note")
    reporter.emit(record)
    people = capsys.readouterr().err.splitlines()
    reporter.setFormatter(JsonLine())
    reporter.say("a note")
    reporter.emit(record)
    machines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert people[0] == "a note"
    assert people[1].endswith(" b\\x1b[2J"), "nothing of a message steers the terminal"
    assert [(m["level"], m["message"]) for m in machines] == [("info", "a note"), ("warning", "b\x1b[2J")]
    assert machines[1]["pid"] == 3
