"""Reads an export to its end before anything is taken of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import BinaryIO

from sessiond.errors import InvalidExport
from sessiond.sessions.transcript import Text
from sessiond.sessions.transfer.container import Place, members, read_at
from sessiond.sessions.transfer.manifest import (
    HEAD,
    MANIFEST,
    MOST_MEMBERS,
    PART,
    SEAL,
    STATE,
    TURNS,
    Head,
    Manifest,
    Member,
    StateMember,
    read_head,
    read_manifest,
    seal,
)
from sessiond.sessions.transfer.turn_line import LATEST, turn_in
from sessiond.sessions.tree import SessionTree, Turn
from sessiond.store.chain import BLOCK_TOKENS, Kind

MOST_TURN_BYTES = 128 << 20
"""Of all turns together: they are in memory while they are looked at."""
MOST_TURNS = 20_000
_SMALL = 64 << 20
_SEALED = len(seal(64 * "0"))


@dataclass(frozen=True, slots=True)
class StateFile:
    """A state of the file, and where in it its bytes are."""

    told: StateMember
    place: Place


@dataclass(frozen=True, slots=True)
class Export:
    head: Head
    tree: SessionTree
    state: tuple[StateFile, ...]


def read_export(file: BinaryIO) -> Export:
    """The whole file, verified. Raises InvalidExport, OSError. Blocking: reads all of it."""
    head = _first(file)
    places = _ordered(file)
    manifest = _manifest(file, places[-2:])
    _compare(file, places[:-2], manifest)
    count = len(places) - 2 - len(manifest.state)
    tree = _tree(file, places[1:count])
    paired = zip(manifest.state, places[count:-2], strict=True)
    state = tuple(StateFile(_possible(told, tree), place) for told, place in paired)
    return Export(head, tree, state)


def _first(file: BinaryIO) -> Head:
    """Before all others: a newer format is said, however the rest of it looks."""
    first = next(iter(members(file)), None)
    if first is None or first.name != HEAD or first.bytes > PART:
        raise InvalidExport("The file is no export of a session.")
    head = read_head(read_at(file, first.offset, first.bytes))
    session = head.session
    if not 0 <= session.created <= LATEST or len(session.title) > PART:
        raise InvalidExport(f"{HEAD} cannot be read: session is not as it must be.")
    return head


def _ordered(file: BinaryIO) -> list[Place]:
    """All members: none that has another name than its place demands, none twice."""
    places: list[Place] = []
    for place in members(file):
        if len(places) >= MOST_MEMBERS or place.name not in _next(places):
            raise InvalidExport(f"There is a member that does not belong at place {len(places)}.")
        places.append(place)
    if not places or places[-1].name != SEAL:
        raise InvalidExport("The file is not complete.")
    return places


def _next(places: Sequence[Place]) -> tuple[str, ...]:
    """The names that may come after these."""
    if not places:
        return (HEAD,)
    last = places[-1].name
    if last == SEAL:
        return ()
    if last == MANIFEST:
        return (SEAL,)
    folder, _, number = last.partition("/")
    if folder == "state":
        return (STATE.format(int(number) + 1), MANIFEST)
    return (TURNS.format(len(places)), STATE.format(1), MANIFEST)


def _manifest(file: BinaryIO, places: Sequence[Place]) -> Manifest:
    listing, sealed = places
    if listing.bytes > _SMALL or sealed.bytes != _SEALED:
        raise InvalidExport("The manifest has a size that it cannot have.")
    raw = read_at(file, listing.offset, listing.bytes)
    if read_at(file, sealed.offset, sealed.bytes) != seal(sha256(raw).hexdigest()):
        raise InvalidExport("The manifest was altered: its digest is another one.")
    return read_manifest(raw)


def _compare(file: BinaryIO, places: Sequence[Place], manifest: Manifest) -> None:
    told: list[Member | StateMember] = [*manifest.members, *manifest.state]
    if [(one.name, one.bytes) for one in told] != [(one.name, one.bytes) for one in places]:
        raise InvalidExport("The manifest tells of other members than the file has.")
    for one, place in zip(told, places, strict=True):
        if _digest(file, place) != one.sha256:
            raise InvalidExport(f"{place.name} was altered: its digest is another one.")


def _digest(file: BinaryIO, place: Place) -> str:
    digest = sha256()
    for at in range(0, place.bytes, PART):
        digest.update(read_at(file, place.offset + at, min(PART, place.bytes - at)))
    return digest.hexdigest()


def _tree(file: BinaryIO, places: Sequence[Place]) -> SessionTree:
    if sum(place.bytes for place in places) > MOST_TURN_BYTES:
        raise InvalidExport(f"The turns have more than {MOST_TURN_BYTES} bytes.")
    lines = (turn for place in places for turn in _turns(file, place))
    turns = list(islice(lines, MOST_TURNS + 1))
    if len(turns) > MOST_TURNS:
        raise InvalidExport(f"There are more than {MOST_TURNS} turns.")
    tree, responses = SessionTree(), set[str]()
    for turn in _related(turns):
        _add(tree, turn)
        if turn.response_id in responses:
            raise InvalidExport(f"Turn {turn.number} has the response of another one.")
        if turn.response_id is not None:
            responses.add(turn.response_id)
    _check_replaced(tree)
    return tree


def _related(turns: Sequence[Turn]) -> Iterator[Turn]:
    """A line that was compacted may be gone; what replaced it does not say so any more then."""
    numbers = {turn.number for turn in turns}
    for turn in turns:
        yield turn if turn.replaces in numbers else replace(turn, replaces=None)


def _check_replaced(tree: SessionTree) -> None:
    """Raises InvalidExport where a turn replaces what it goes on from: each turn's are the numbers
    from `first` on, as many as there are turns below it and itself.
    """
    sizes = Counter[int | None]()
    for turn in reversed(list(tree)):
        sizes[turn.number] += 1
        sizes[turn.parent] += sizes[turn.number]
    first, free = dict[int, int](), Counter[int | None]()
    for turn in tree:
        first[turn.number] = free[turn.parent]
        free[turn.parent] += sizes[turn.number]
        free[turn.number] = first[turn.number] + 1
    for turn in tree:
        if (gone := turn.replaces) is not None:
            if first[gone] <= first[turn.number] < first[gone] + sizes[gone]:
                raise InvalidExport(f"Turn {turn.number} replaces what it goes on from.")


def _turns(file: BinaryIO, place: Place) -> Iterator[Turn]:
    file.seek(place.offset)
    left, number = place.bytes, 0
    while left:
        line = file.readline(left)
        left, number = left - len(line), number + 1
        yield turn_in(line, f"{place.name}, line {number}")


def _add(tree: SessionTree, turn: Turn) -> None:
    """Raises InvalidExport."""
    if turn.replaces is not None and turn.replaces not in tree:
        raise InvalidExport(f"Turn {turn.number} replaces one that is not before it.")
    if turn.parent is not None and turn.parent >= turn.number:
        raise InvalidExport(f"Turn {turn.number} does not fit: it came before its parent.")
    try:
        tree.add(turn)
    except (ValueError, TypeError) as error:
        raise InvalidExport(f"Turn {turn.number} does not fit those before it.") from error
    above = turn if turn.parent is None else tree[turn.parent]
    if isinstance(above.content, Text) != isinstance(turn.content, Text):
        raise InvalidExport(f"Turn {turn.number} does not go on from what its parent is.")


def _possible(told: StateMember, tree: SessionTree) -> StateMember:
    """Raises InvalidExport for a state that no line of the session can have."""
    good = told.turn in tree and told.bytes > 0 and told.end <= tree.length(told.turn)
    if told.kind is Kind.BLOCK:
        good &= told.start % BLOCK_TOKENS == 0 and 1 <= told.end - told.start <= BLOCK_TOKENS
        good &= told.start >= 0
    else:
        good &= told.start == 0 and told.end >= 1
    if not good:
        raise InvalidExport(f"{told.name} is the state of something that the session has not.")
    return told
