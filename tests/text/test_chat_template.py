"""Chat templates: rendered as Transformers does, in a sandbox, without a clock."""

import datetime

import pytest

from headrace.pipeline.text.chat_template import ChatTemplate, TemplateRefusal

MESSAGES = [{"role": "user", "content": "<a> & 'b' é"}, {"role": "assistant", "content": "c"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source, variables).render(MESSAGES, [{"name": "f"}])


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ messages[0].content | tojson }}", "\"<a> & 'b' é\""),
        ("{{ {'b': 1, 'a': [true, none]} | tojson }}", '{"b": 1, "a": [true, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
         '{"a":2,"b":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
         "user"),
        ("a{% generation %}b{{ messages[1].content }}{% endgeneration %}d", "abcd"),
        ("{{ bos_token }}|{{ eos_token }}", "<s>|"),
        ("{{ tools[0].name }}{{ add_generation_prompt }}{{ documents }}", "fFalseNone"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 2026"),
        ("{{ messages[0].missing is defined }}", "False"),
    ],
)  # fmt: skip
def test_rendering(source: str, text: str) -> None:
    assert render(source, bos_token="<s>") == text


def test_the_date_is_given() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", date=datetime.date(1999, 2, 3))
    assert template.render([]) == "1999"


def test_no_tools_are_none() -> None:
    assert ChatTemplate("{{ tools is none }}").render([]) == "True"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ nothing.at.all }}",
        "{{ [].pop }}{{ range(10 ** 9) | list }}",
    ],
)
def test_what_a_template_must_not_or_cannot_do_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateRefusal, match="the chat template"):
        render(source)
    assert MESSAGES[0] == {"role": "user", "content": "<a> & 'b' é"}
