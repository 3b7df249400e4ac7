"""Which chat templates know tools, as their checkpoints write them, and what they then write."""

import json
from pathlib import Path

import pytest

from omni_jobs.prompts.chat_template import ChatTemplate

LLAMA = (
    "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{% if tools is not none %}{{ tools }}{% endif %}"
)
MESSAGES = "{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "knows"),
    [
        (MESSAGES, False),
        ("{% set tools = 3 %}" + MESSAGES, False),
        ("{# tools #}{{ 'tools' }}" + MESSAGES, False),
        ("{% if tools %}{{ tools | tojson }}{% endif %}" + MESSAGES, True),
        (LLAMA + MESSAGES, True),
        ("{% generation %}{{ tools }}{% endgeneration %}", True),
    ],
)
def test_a_template_knows_tools_if_it_reads_them(tmp_path: Path, template: str, knows: bool) -> None:
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    assert ChatTemplate(tmp_path).takes_tools is knows


def test_tools_are_told_of_by_the_template_that_has_them_alone(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% if tools %}{{ tools | tojson }}{% endif %}", encoding="utf-8")
    template = ChatTemplate(tmp_path)
    tools = [{"type": "function", "function": {"name": "é"}}]
    assert json.loads(template.with_tools(tools).render([])) == tools
    assert template.render([]) == ""
