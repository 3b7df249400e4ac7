"""Fragments: rendered once for all who look, anew after a second and after an action, and never one for another."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from omni_jobs.dashboard import fragments
from omni_jobs.dashboard.fragments import Fragments


async def on_no_thread(function: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)  # others ask meanwhile
    return function()


async def test_all_who_look_at_once_get_one_rendering() -> None:
    kept, made = Fragments(), []

    def render() -> str:
        made.append(1)
        return f"<b>{len(made)}</b>"

    got = await asyncio.gather(*(kept.get("acme", "overview", render, on_no_thread) for _ in range(20)))
    assert {each.html for each in got} == {"<b>1</b>"}
    assert len({each.etag for each in got}) == 1
    other = await kept.get("globex", "overview", render, on_no_thread)
    assert other.html == "<b>2</b>"


async def test_an_action_makes_what_its_tenant_sees_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "_KEPT_S", 1000.0)
    kept, made = Fragments(), []

    def render() -> str:
        made.append(1)
        return str(len(made))

    async def seen(tenant: str | None) -> str:
        return (await kept.get(tenant, "jobs", render, on_no_thread)).html

    first = [await seen(tenant) for tenant in ("acme", "globex", None)]
    kept.forget("acme")
    assert [await seen(tenant) for tenant in ("acme", "globex", None)] == ["4", first[1], "5"]


async def test_few_are_kept_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "_MOST", 2)
    kept = Fragments()

    def fail() -> str:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - any
        await kept.get(None, "a", fail, on_no_thread)
    assert (await kept.get(None, "a", lambda: "well", on_no_thread)).html == "well"
    for name in ("b", "c", "a"):
        assert (await kept.get(None, name, lambda name=name: name, on_no_thread)).html == name  # type: ignore[misc]
