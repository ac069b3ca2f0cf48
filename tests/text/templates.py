"""Small chat templates for tests, each with one habit of the real ones."""

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\n' }}
{%- endif %}"""

# Tools in the system message, results in the user's turn.
CHATML_TOOLS = """\
{%- if tools %}
{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else '') }}
{{- '\nTools:' }}
{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\n' }}
THINK
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '\n' if message.content or not loop.first }}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

# Reasoning is written in every turn.
KEEPING = CHATML_TOOLS.replace(
    "THINK",
    """{%- if message.reasoning_content %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}""",
)

# Reasoning before the last user message is left out.
STRIPPING = CHATML_TOOLS.replace(
    "THINK",
    """{%- set later = messages[loop.index:] | selectattr('role', 'equalto', 'user') | list %}
{%- if message.reasoning_content and not later %}
{{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
{%- endif %}""",
)

# Roles alternate, no system message, contents are trimmed.
GEMMA = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role != ('assistant' if loop.index0 % 2 else 'user') %}
{{- raise_exception('roles must alternate') }}
{%- endif %}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\n' }}
{{- message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# Two line breaks after the role, one call a turn, today's date.
LLAMA = """\
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\n' + strftime_now('%d %b %Y') }}
{%- for tool in tools or [] %}{{ '\n' + (tool | tojson(indent=4)) }}{% endfor %}
{%- if messages[0].role == 'system' %}{{ '\n' + messages[0].content | trim }}{% endif %}
{{- '<|eot_id|>' }}
{%- for message in messages if message.role != 'system' %}
{%- set role = 'ipython' if message.role == 'tool' else message.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
{%- if message.tool_calls and message.tool_calls | length > 1 %}
{{- raise_exception('one call a turn') }}
{%- elif message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
{%- else %}{{ message.content | trim }}{% endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}"""

# The end of the text is marked where nothing is generated.
PHI = """\
{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}\
{% endfor %}{{ '<|assistant|>\n' if add_generation_prompt else eos_token }}"""

# A turn has no end but the next one's start.
OPENING = """\
{% for message in messages %}
{{- '<|' + message.role + '|>\n' + message.content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""

# The last turn has a closing token of its own, and an answer names its tool by the call.
HARMONY = """\
{%- for tool in tools or [] %}{{ '<|start|>developer<|message|>' + (tool | tojson) + '<|end|>' }}
{%- endfor %}
{%- set seen = namespace(name='') %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- set call = message.tool_calls[0].function %}
{%- set seen.name = call.name %}
{{- '<|start|>assistant to=functions.' + call.name + '<|message|>' }}
{{- (call.arguments | tojson) + '<|call|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start|>functions.' + seen.name + '<|message|>' + (message.content | tojson) + '<|end|>' }}
{%- else %}
{{- '<|start|>' + message.role + '<|message|>' + message.content }}
{{- '<|return|>' if loop.last and message.role == 'assistant' else '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

# Tools stand before the last user message, and a call ends with its id, of nine characters.
MISTRAL = """\
{{- bos_token }}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == users[-1] %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (']' if loop.last else ', ') }}
{%- endfor %}
{{- eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) }}
{{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- elif message.role == 'system' %}
{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- else %}
{{- message.content + eos_token }}
{%- endif %}
{%- endfor %}"""

# The reasoning is opened for the policy, and no turn that is over shows any, as R1's and QwQ's.
OPENED = CHATML_TOOLS.replace("THINK\n", "").replace(
    "%}{{ '<|im_start|>assistant\n' }}", "%}{{ '<|im_start|>assistant\n<think>\n' }}"
)

# The last user message, while it is the last, asks for reasoning.
ASKING = CHATML.replace(
    "+ message.content +",
    "+ ('/think ' if loop.last and add_generation_prompt else '') + message.content +",
)

# Tools stand before a user message that is the last one.
TOOLS_LAST = """\
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.last %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- else %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + (call.function | tojson) }}
{%- endfor %}
{{- eos_token }}
{%- endif %}
{%- endfor %}"""

# What comes after a turn depends on its length.
LEAKING = CHATML.replace(
    "{{ '<|im_start|>' +",
    "{{ ('(long) ' if loop.previtem and loop.previtem.content | length > 20 else '') "
    "+ '<|im_start|>' +",
)

# Turns are closed by ordinary text.
PLAIN_TEXT = """\
{% for message in messages %}{{ message.role + ': ' + message.content + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"""

# Only text in parts.
PARTS = """\
{% for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- for part in message.content if part.type == 'text' %}{{ part.text }}{% endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

SPECIALS = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>",
    "<tool_response>", "</tool_response>", "<think>", "</think>", "<start_of_turn>",
    "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|end|>", "<|start|>",
    "<|message|>", "<|return|>", "<|call|>", "[INST]", "[/INST]", "[TOOL_CALLS]",
    "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
)  # fmt: skip

SAFE = {
    "chatml": CHATML,
    "keeping": KEEPING,
    "gemma": GEMMA,
    "llama": LLAMA,
    "phi": PHI,
    "opening": OPENING,
    "parts": PARTS,
}
REWRITING = {"stripping": STRIPPING, "harmony": HARMONY, "mistral": MISTRAL}
