"""What is taken without a configuration is what the configuration takes by default."""

from terazi.service.config import PowerTable
from terazi.service.power import Unconfigured


def test_the_defaults_are_those_of_the_configuration() -> None:
    assert Unconfigured()._asdict() == PowerTable().model_dump()
