"""The tier's books: whose KV is kept, what goes first, and that want of room is no error."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: pip install 'autellix[cpu]'")

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from autellix.errors import VersionError
from autellix.kernels import vllm_names
from autellix.kernels.host_tier import Bandwidth, HostTier
from autellix.kernels.offload_manager import ProgramManager
from autellix.kernels.vllm_names import OffloadKey, ReqContext

SIZE, TOKENS = 1000, 16


def key(number: int) -> OffloadKey:
    return OffloadKey(number.to_bytes(8, "big") + bytes(4))


def manager(chunks: int) -> ProgramManager:
    return ProgramManager(chunks, SIZE, (TOKENS,), enable_events=True)


def context(tier: ProgramManager, program: str, keys: list[int], request: str = "") -> ReqContext:
    """A call of a program whose context consists of these pieces, in this order."""
    found = ReqContext(req_id=request or f"call of {program}")
    tier.name_program(found.req_id, program)
    for place, number in enumerate(keys, start=1):
        found.set_offload_key_position(key(number), place * TOKENS)
    tier.on_new_request(found)
    return found


def store(tier: ProgramManager, program: str, keys: list[int], *, arrive: bool = True) -> bool:
    """Store a context's pieces; whether there was room."""
    call = context(tier, program, keys)
    wanted = [key(number) for number in keys]
    room = tier.prepare_store(wanted, call)
    if room is not None and arrive:
        tier.complete_store(room.keys_to_store, call)
    tier.check()
    return room is not None


def held(tier: ProgramManager, program: str) -> int:
    return tier.stored(program).chunks


def test_what_is_stored_is_known_by_program() -> None:
    tier: HostTier = manager(8)
    assert isinstance(tier, ProgramManager)
    store(tier, "a", [1, 2, 3])
    store(tier, "b", [4])
    a = tier.stored("a")
    assert (a.chunks, a.ready_chunks, a.size_bytes, a.tokens) == (3, 3, 3 * SIZE, 3 * TOKENS)
    assert not a.pinned and tier.stored("nobody").chunks == 0
    assert (tier.usage().used_bytes, tier.usage().capacity_bytes) == (4 * SIZE, 8 * SIZE)


def test_a_request_may_name_its_program_itself() -> None:
    tier = manager(8)
    call = ReqContext(req_id="r", kv_transfer_params={"program": "mine"})
    tier.prepare_store([key(1)], call)
    assert held(tier, "mine") == 1
    tier.prepare_store([key(2)], ReqContext(req_id="nameless"))
    assert held(tier, "nameless") == 1, "else it is a program of its own"


def test_what_was_used_longest_ago_goes_first_and_the_end_of_a_context_before_its_start() -> None:
    tier = manager(6)
    store(tier, "old", [1, 2, 3])
    store(tier, "new", [4, 5, 6])
    store(tier, "third", [7, 8])
    assert (held(tier, "old"), held(tier, "new"), held(tier, "third")) == (1, 3, 2)
    assert tier.lookup(key(1), context(tier, "old", [1])).name == "HIT", "its beginning stays"
    store(tier, "old", [1])  # used again: now "new" is the oldest
    store(tier, "fourth", [9, 10])
    assert (held(tier, "old"), held(tier, "new")) == (1, 1)


def test_what_a_program_has_left_behind_goes_before_what_another_goes_on_with() -> None:
    tier = manager(6)
    for program, keys, request in (("a", [1, 2, 3], "a1"), ("b", [4], "b1"), ("a", [1, 5], "a2")):
        call = context(tier, program, keys, request)
        new = [key(number) for number in keys if tier.lookup(key(number), call).name == "MISS"]
        room = tier.prepare_store(new, call)
        assert room is not None
        tier.complete_store(room.keys_to_store, call)
        tier.on_request_finished(call)  # it found piece 1 on the device, and used it all the same
    store(tier, "c", [6, 7, 8])
    left = [n for n in range(1, 9) if tier.lookup(key(n), context(tier, "x", [])).name == "HIT"]
    assert left == [1, 4, 5, 6, 7, 8]


def test_an_aged_program_goes_first_and_what_it_shares_in_its_turn() -> None:
    tier = manager(5)
    store(tier, "old", [1, 2])
    store(tier, "new", [1, 3, 4])
    tier.age("new")
    store(tier, "third", [5, 6, 7])
    assert (held(tier, "old"), held(tier, "new"), held(tier, "third")) == (2, 1, 3)


def test_how_long_unused_kv_stays_is_measured_once_room_was_wanted() -> None:
    tier = manager(2)
    clock = [100.0]
    tier._lru.now = lambda: clock[0]
    store(tier, "a", [1])
    store(tier, "b", [2])
    assert tier.stays_s == float("inf")
    clock[0] = 130.0
    store(tier, "c", [3])
    assert tier.stays_s == 30.0


def test_a_pinned_program_stays_and_then_there_may_be_no_room() -> None:
    tier = manager(4)
    store(tier, "kept", [1, 2, 3])
    tier.pin("kept")
    assert tier.usage().pinned_bytes == 3 * SIZE
    assert store(tier, "b", [4])
    assert not store(tier, "c", [5, 6]), "two pieces do not fit, and nothing is evicted for them"
    assert (held(tier, "kept"), held(tier, "b")) == (3, 1)
    tier.unpin("kept")
    assert store(tier, "c", [5, 6])


def test_what_moves_is_not_evicted() -> None:
    tier = manager(3)
    store(tier, "moving", [1, 2], arrive=False)
    assert tier.stored("moving").ready_chunks == 0
    assert tier.usage().moving_bytes == 2 * SIZE
    assert not store(tier, "b", [3, 4])
    assert store(tier, "b", [3])
    assert store(tier, "c", [4]), "what moves is older, and stays all the same"
    assert [tier.stored(program).chunks for program in ("moving", "b", "c")] == [2, 0, 1]


def test_a_finished_program_frees_its_kv_at_once_and_shared_pieces_stay() -> None:
    tier = manager(8)
    store(tier, "a", [1, 2, 3])
    store(tier, "b", [1, 2, 4])
    assert tier.drop("a") == SIZE
    assert (held(tier, "a"), held(tier, "b")) == (0, 3)
    assert tier.drop("b") == 3 * SIZE and tier.usage().used_bytes == 0
    tier.check()
    assert [event.removed for event in tier.take_events()].count(True) == 2


def test_what_moves_is_freed_when_it_has_arrived() -> None:
    tier = manager(4)
    call = context(tier, "a", [1, 2])
    room = tier.prepare_store([key(1), key(2)], call)
    assert room is not None and tier.drop("a") == 0
    assert tier.usage().used_bytes == 2 * SIZE
    tier.complete_store(room.keys_to_store, call)
    assert tier.usage().used_bytes == 0
    tier.check()


def test_a_dropped_piece_that_somebody_wants_in_the_meantime_stays() -> None:
    tier = manager(4)
    call = context(tier, "a", [1])
    room = tier.prepare_store([key(1)], call)
    assert room is not None
    tier.drop("a")
    store(tier, "b", [1])
    tier.complete_store(room.keys_to_store, call)
    assert held(tier, "b") == 1


def test_a_prefetch_holds_the_context_up_to_its_first_gap() -> None:
    tier = manager(4)
    store(tier, "a", [1, 2])
    store(tier, "a", [1, 2, 3], arrive=False)
    prefetch = tier.begin_prefetch("a")
    assert prefetch is not None and prefetch.keys == (key(1), key(2))
    assert prefetch.size_bytes == 2 * SIZE and len(set(prefetch.rows)) == 2
    assert not store(tier, "b", [5, 6]), "what is held is not evicted"
    tier.end_prefetch(prefetch)
    tier.end_prefetch(prefetch)  # twice does no harm
    tier.check()
    assert store(tier, "b", [5, 6])
    assert tier.begin_prefetch("nobody") is None


def test_a_reset_voids_prefetches() -> None:
    tier = manager(4)
    store(tier, "a", [1])
    prefetch = tier.begin_prefetch("a")
    assert prefetch is not None
    tier.reset_cache()
    store(tier, "a", [1])
    tier.end_prefetch(prefetch)
    tier.check()


def test_nothing_measured_is_no_figure() -> None:
    speed = Bandwidth()
    assert speed.bytes_per_s("load") is None and speed.seconds_for("load", 10) is None
    speed.observe("load", 0, 1.0)
    assert speed.bytes_per_s("load") is None
    speed.observe("load", 100, 2.0)
    assert speed.bytes_per_s("load") == 50.0 and speed.bytes_per_s("store") is None
    for _ in range(20):
        speed.observe("load", 2**30, 0.5)
    assert speed.seconds_for("load", 2**31) == pytest.approx(1.0, rel=1e-3), "it forgets"


def test_a_missing_name_of_vllm_is_told_with_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_names, "_OFFERED", ((ReqContext, ("no_such",)),))
    with pytest.raises(VersionError, match=r"ReqContext\.no_such.*tested with vLLM 0\.32"):
        vllm_names.require_names()


class Books(RuleBasedStateMachine):
    """Any order of stores, loads, drops and prefetches leaves the books in agreement."""

    def __init__(self) -> None:
        super().__init__()
        self.tier = manager(6)
        self.moves: list[tuple[str, list[OffloadKey], ReqContext]] = []
        self.prefetches: list = []

    programs = st.sampled_from("abc")
    pieces = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)

    @rule(program=programs, keys=pieces)
    def begin_store(self, program: str, keys: list[int]) -> None:
        call = context(self.tier, program, keys)
        room = self.tier.prepare_store([key(n) for n in keys], call)
        if room is not None and room.keys_to_store:
            self.moves.append(("store", room.keys_to_store, call))

    @rule(program=programs, keys=pieces)
    def begin_load(self, program: str, keys: list[int]) -> None:
        call = context(self.tier, program, keys)
        ready = [key(n) for n in keys if self.tier.lookup(key(n), call).name == "HIT"]
        if ready:
            self.tier.prepare_load(ready, call)
            self.moves.append(("load", ready, call))

    @precondition(lambda self: self.moves)
    @rule(data=st.data(), success=st.booleans())
    def arrive(self, data: st.DataObject, success: bool) -> None:
        kind, keys, call = self.moves.pop(data.draw(st.integers(0, len(self.moves) - 1)))
        if kind == "store":
            self.tier.complete_store(keys, call, success)
        else:
            self.tier.complete_load(keys, call)

    @rule(program=programs)
    def drop(self, program: str) -> None:
        self.tier.drop(program)
        assert held(self.tier, program) == 0

    @rule(program=programs, pinned=st.booleans())
    def pin(self, program: str, pinned: bool) -> None:
        (self.tier.pin if pinned else self.tier.unpin)(program)

    @rule(program=programs)
    def prefetch(self, program: str) -> None:
        if (found := self.tier.begin_prefetch(program)) is not None:
            self.prefetches.append(found)

    @precondition(lambda self: self.prefetches)
    @rule()
    def end_prefetch(self) -> None:
        self.tier.end_prefetch(self.prefetches.pop())

    @invariant()
    def books_agree(self) -> None:
        self.tier.check()
        assert self.tier.usage().used_bytes <= self.tier.usage().capacity_bytes

    def teardown(self) -> None:
        while self.moves:
            kind, keys, call = self.moves.pop()
            (self.tier.complete_store if kind == "store" else self.tier.complete_load)(keys, call)
        while self.prefetches:
            self.tier.end_prefetch(self.prefetches.pop())
        for program in "abc":
            self.tier.drop(program)
        assert self.tier.usage().used_bytes == 0, "nothing is left when nobody is"


Books.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBooks = Books.TestCase
