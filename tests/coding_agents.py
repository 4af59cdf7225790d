"""Bodies as coding agents send them, written after their public sources and shortened; their prompts are ours."""

#: What Codex CLI sends with ``wire_api = "responses"``, shortened (codex-rs/core/src/client.rs, and the items of
#: codex-rs/protocol/src/models.rs).
CODEX: dict[str, object] = {
    "model": "local",
    "instructions": "You are Codex.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions>read-only</permissions>"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list the files"}]},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "I shall list."}],
            "encrypted_content": None,
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Listing."}]},
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "call_1"},
        {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "call_2"},
        {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a command",
            "strict": False,
            "parameters": {"type": "object", "properties": {"command": {"type": "array"}}},
        },
        {"type": "custom", "name": "apply_patch", "description": "Patch", "format": {"type": "grammar"}},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "text": {"verbosity": "medium"},
}

#: What Claude Code 2.1 sends, shortened (llama.cpp#21793 has the header, anthropic-sdk-python the types).
CLAUDE_CODE: dict[str, object] = {
    "model": "claude-sonnet-4-5-20250929",
    "max_tokens": 32000,
    "stream": True,
    "system": [
        {
            "type": "text",
            "text": "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;",
        },
        {
            "type": "text",
            "text": "You are Claude Code, Anthropic's official CLI for Claude.",
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
                {"type": "text", "text": "list the files", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I shall list.", "signature": "EpwC"},
                {"type": "text", "text": "Listing."},
                {"type": "tool_use", "id": "toolu_01", "name": "Bash", "input": {"command": "ls", "n": 1}},
                {"type": "tool_use", "id": "toolu_02", "name": "Bash", "input": {"command": "pwd"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_01", "content": "a.txt"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_02",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no such command"}],
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "text", "text": "go on"},
            ],
        },
    ],
    "tools": [
        {
            "name": "Bash",
            "description": "Run a command",
            "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "metadata": {"user_id": "user_1_account__session_2"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "temperature": 1,
}

_TOOL: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}
_EDITING: list[dict[str, object]] = [
    {"role": "system", "content": "Act as an expert software developer. " * 40},
    {"role": "user", "content": "These files are in the chat:\n\nscale.py\n```\ndef weigh(): ...\n```\n"},
    {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
    {"role": "user", "content": "Add a docstring."},
]
#: Aider with ``openai/NAME``: ``aider/models.py: Model.send_completion`` through LiteLLM, and a model's
#: ``extra_params`` of ``.aider.model.settings.yml``, among which are names that no engine knows.
AIDER_OPENAI: dict[str, object] = {
    "model": "demo",
    "messages": _EDITING,
    "temperature": 0,
    "stream": True,
    "max_tokens": 64,
    "caching_groups": None,
    "metadata": {"editor": "aider"},
    "extra_headers": None,
    "repeat_penalty": 1.05,
}
#: The same when an answer reached its limit: ``aider/coders/base_coder.py`` gives its beginning back as a last
#: message with ``prefix``, to have the rest.
AIDER_PREFILL: dict[str, object] = {
    **AIDER_OPENAI,
    "messages": [*_EDITING, {"role": "assistant", "content": "scale.py\n```\n", "prefix": True}],
}
#: Aider with ``ollama_chat/NAME``: ``num_ctx`` grows with each turn (``aider/models.py``: tokens * 1.25 + 8192), in
#: the shape of LiteLLM's ``llms/ollama/chat/transformation.py``.
AIDER_OLLAMA: dict[str, object] = {
    "model": "demo",
    "messages": _EDITING,
    "options": {"temperature": 0, "num_ctx": 9_811, "num_predict": 64},
    "stream": True,
}
#: Continue with ``provider: openai``: ``packages/openai-adapters`` and ``core/llm/openaiTypeConverters.ts``.
CONTINUE_OPENAI: dict[str, object] = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "You are in agent mode."},
        {"role": "user", "content": [{"type": "text", "text": "Explain scale.py"}]},
        {
            "role": "assistant",
            "content": " ",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "def weigh(): ..."},
    ],
    "max_tokens": 64,
    "temperature": 0.1,
    "stream": True,
    "stream_options": {"include_usage": True},
    "tools": [_TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
}
#: Continue with ``provider: llama.cpp``: ``core/llm/llms/LlamaCpp.ts``.
CONTINUE_LLAMA_CPP: dict[str, object] = {
    "prompt": "<fim_prefix>def weigh(<fim_suffix>):\n<fim_middle>",
    "n_predict": 12,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "min_p": 0.05,
    "mirostat": 0,
    "stop": ["<fim_prefix>", "\n\n"],
    "top_k": 40,
    "top_p": 0.9,
    "temperature": 0.01,
    "stream": True,
}
#: Continue's completion of code with ``provider: ollama``: ``core/llm/llms/Ollama.ts: streamFim``.
CONTINUE_GENERATE: dict[str, object] = {
    "model": "demo",
    "prompt": "<fim_prefix>def weigh(<fim_suffix>):\n<fim_middle>",
    "raw": True,
    "stream": True,
    "keep_alive": 1800,
    "options": {"num_predict": 12, "num_ctx": 8192, "stop": ["\n\n\n"], "temperature": 0.01, "mirostat": None},
}
#: Cline: ``src/core/api/providers/openai.ts``: 50,000 characters of system prompt, and parts instead of text.
CLINE: dict[str, object] = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "TOOL USE. " * 5000},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<task>\nWeigh this.\n</task>"},
                {"type": "text", "text": "<environment_details>\n# VSCode Open Tabs\n</environment_details>"},
            ],
        },
    ],
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}
#: Roo Code: ``src/api/providers/openai.ts``: as Cline, with tools of the API, and the newer name of the limit.
ROO: dict[str, object] = {
    **CLINE,
    "tools": [_TOOL],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_completion_tokens": 64,
}
#: Cline with Ollama: ``src/core/api/providers/ollama.ts``: ``num_ctx`` as it is set there, 32768 if it isn't.
CLINE_OLLAMA: dict[str, object] = {
    "model": "demo",
    "messages": [
        {"role": "system", "content": "TOOL USE. " * 5000},
        {"role": "user", "content": "<task>\nWeigh this.\n</task>"},
    ],
    "stream": True,
    "options": {"num_ctx": 32_768},
}
#: Open WebUI's own questions (titles, tags, follow-ups) at an OpenAI connection: ``routers/tasks.py``.
OPEN_WEBUI_TITLE: dict[str, object] = {
    "model": "demo",
    "messages": [{"role": "user", "content": '### Task:\nA title as JSON: { "title": "..." }'}],
    "stream": False,
    "max_completion_tokens": 1000,
}
