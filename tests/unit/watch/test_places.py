"""Places among the requests that watch: whatever is reserved and released in whatever order, the bounds hold."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from omni_jobs.errors import ServerBusy
from omni_jobs.watch.watch import Watch, WatchPlace

MOST, MOST_PER_TENANT = 4, 2
NO_JOBS: Any = type("NoJobs", (), {"text_pieces": None})()


class PlacesMachine(RuleBasedStateMachine):
    """Reserves, releases, and releases again."""

    held: Bundle[WatchPlace] = Bundle("held")
    given_back: Bundle[WatchPlace] = Bundle("given back")

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch(NO_JOBS, most=MOST, most_per_tenant=MOST_PER_TENANT)
        self.holders: list[str | None] = []

    def has_room(self, tenant: str | None) -> bool:
        return len(self.holders) < MOST and (tenant is None or self.holders.count(tenant) < MOST_PER_TENANT)

    @rule(target=held, tenant=st.sampled_from([None, "a", "b", "c"]))
    def reserve(self, tenant: str | None) -> Any:
        if not self.has_room(tenant):
            with pytest.raises(ServerBusy):
                self.watch.reserve(tenant)
            return multiple()
        self.holders.append(tenant)
        return self.watch.reserve(tenant)

    @rule(target=given_back, place=consumes(held), by_context=st.booleans())
    def release(self, place: WatchPlace, by_context: bool) -> WatchPlace:
        if by_context:
            with place:
                pass
        else:
            place.release()
        self.holders.remove(place.tenant)
        return place

    @rule(place=given_back)
    def release_again(self, place: WatchPlace) -> None:
        place.release()

    @invariant()
    def nothing_is_kept_of_who_has_no_place(self) -> None:
        assert len(self.watch._places) == len(self.holders)
        assert dict(self.watch._of_tenants) == {
            tenant: self.holders.count(tenant) for tenant in self.holders if tenant is not None
        }


PlacesMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestPlaces = PlacesMachine.TestCase
