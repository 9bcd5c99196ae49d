"""Random histories of objects: sound ones, with operations of unknown outcome, then changed.

A history is made in the order in which operations take effect; calls and returns are around that.
Then an answer or a time is changed; sometimes the history remains sound.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from object_oracle import Act

from harness.operation import F

MOST = 8
STEP, REACHES = 100, (30, 110, 260)
FAITHFUL = 0.6
ONES, EVENS, MIXED = (1,), (-3,), (1, 2, -1, 5)

Acts = list[Act]


class _Maker:
    """The next effect, its time, and its process."""

    def __init__(self, dice: Random, unsure: float, reach: int) -> None:
        self.dice, self.unsure, self.reach = dice, unsure, reach
        self.acts: Acts = []
        self.point = 1000
        self.faithful = dice.random() < FAITHFUL
        self._free: dict[int, int] = {}  # process: when its last operation ended

    def process(self) -> int:
        self.point += STEP
        idle = [p for p, end in self._free.items() if end < self.point]
        if idle and (self.dice.random() < 0.6 or len(self._free) > 3):
            return self.dice.choice(idle)
        return len(self._free)

    def recent(self, value: int) -> bool:
        """A flawed object may show a read what came a moment ago, or not."""
        return not self.faithful and value in [a.value for a in self.acts[-3:]]

    def act(
        self, process: int, f: F, lossy: bool = True, **how: int | tuple[int, ...] | None
    ) -> bool:
        """Add an operation; False if it has no effect."""
        earliest = max(self.point - self.reach, self._free.get(process, 0) + 1)
        call = self.dice.randint(earliest, self.point)
        end = self.dice.randint(self.point, self.point + self.reach)
        made = Act(f, process, call, end, **how)  # type: ignore[arg-type]
        self._free[process] = end
        if lossy and self.dice.random() < self.unsure:
            made = replace(made, end=None, told=self.dice.random() < 0.5)
            made = replace(made, value=None) if f is F.DEQUEUE else replace(made, offset=None)
            if self.dice.random() < 0.8:
                self._free[process] = 1 << 30
            self.acts.append(made)
            return self.dice.random() < 0.5
        self.acts.append(made)
        return True


def queue(dice: Random, maker: _Maker) -> None:
    held: list[int] = []
    for number in range(1, dice.randint(4, MOST) + 1):
        process = maker.process()
        if dice.random() < 0.5:
            if maker.act(process, F.ENQUEUE, value=number):
                held.append(number)
        else:
            at = 0 if maker.faithful or not held else dice.randrange(len(held))
            value = held[at] if held and (maker.faithful or dice.random() < 0.8) else None
            if maker.act(process, F.DEQUEUE, value=value) and value is not None:
                del held[at : at + (maker.faithful or dice.random() < 0.8)]


def set_(dice: Random, maker: _Maker) -> None:
    held: set[int] = set()
    for number in range(1, dice.randint(4, MOST) + 1):
        process = maker.process()
        if dice.random() < 0.5:
            value = number if dice.random() < 0.8 else dice.randint(1, MOST)
            if maker.act(process, F.ADD, value=value):
                held.add(value)
        else:
            seen = tuple(v for v in held if not maker.recent(v) or dice.random() < 0.5)
            seen += seen[: not maker.faithful and dice.random() < 0.2]
            maker.act(process, F.LIST, lossy=False, seen=seen)


def counter(dice: Random, maker: _Maker) -> None:
    total, steps = 0, dice.choice((ONES, ONES, ONES, EVENS, MIXED))
    for _ in range(dice.randint(4, MOST)):
        process = maker.process()
        if dice.random() < 0.5:
            value = dice.choice(steps)
            if maker.act(process, F.ADD, value=value):
                total += value
        else:
            missed = sum(dice.random() < 0.3 for _ in range(2)) * steps[0]
            shown = total if maker.faithful else total - missed
            maker.act(process, F.COUNT, lossy=False, value=shown)


def log(dice: Random, maker: _Maker) -> None:
    held: tuple[int, ...] = ()
    for number in range(1, dice.randint(4, MOST) + 1):
        process = maker.process()
        if dice.random() < 0.65:
            offset = len(held) if dice.random() < 0.5 else None
            if not maker.act(process, F.APPEND, value=number, offset=offset):
                continue
            if maker.faithful or dice.random() < 0.8:
                held += (number,)
        else:
            shown = held if maker.faithful else held[: len(held) - dice.randrange(2)]
            maker.act(process, F.LIST, lossy=False, seen=shown)


def lock(dice: Random, maker: _Maker) -> None:
    holder, token = None, 0
    for _ in range(dice.randint(4, MOST)):
        process = maker.process()
        if holder is None or (not maker.faithful and dice.random() < 0.2):
            token += 1
            offset = token if dice.random() < 0.8 else None
            if maker.act(process, F.ACQUIRE, offset=offset):
                holder = process
        elif holder == process or dice.random() < 0.3:
            mine = holder == process
            if maker.act(process, F.RELEASE) and mine:
                holder = None
            last = maker.acts[-1]
            if not mine and last.known:
                refused = dice.random() < 0.5
                maker.acts[-1] = replace(last, failed=True, refused=refused)


# ------------------------------------------------------------------------------------- spoiling


def _moved(dice: Random, acts: Acts) -> Acts:
    """An operation at another time."""
    at = dice.randrange(len(acts))
    act, by = acts[at], dice.choice((-3, -2, 2, 3)) * STEP
    taken = [a for i, a in enumerate(acts) if i != at and a.process == act.process]
    process = max(a.process for a in acts) + 1 if taken else act.process
    end = None if act.end is None else act.end + by
    return [*acts[:at], replace(act, call=act.call + by, end=end, process=process), *acts[at + 1 :]]


def _failed(dice: Random, acts: Acts) -> Acts:
    """Let an operation report a failure."""
    at = dice.randrange(len(acts))
    act = acts[at]
    if not act.known or act.f in (F.LIST, F.COUNT):
        return acts
    value = None if act.f is F.DEQUEUE else act.value
    failed = replace(act, failed=True, value=value, offset=None)
    return [*acts[:at], failed, *acts[at + 1 :]]


def _changed(dice: Random, acts: Acts) -> Acts:
    """An answer is another one."""
    answers = [i for i, a in enumerate(acts) if a.known and (a.f in _CHANGES)]
    if not answers:
        return acts
    at = dice.choice(answers)
    others = [a for i, a in enumerate(acts) if i != at and a.f is acts[at].f]
    return [*acts[:at], _CHANGES[acts[at].f](dice, acts[at], others), *acts[at + 1 :]]


def _swapped(dice: Random, acts: Acts) -> Acts:
    """Two answers to the same question change places."""
    one = dice.randrange(len(acts))
    same = [i for i, a in enumerate(acts) if a.f is acts[one].f and a.known and i != one]
    if not same or not acts[one].known or acts[one].f is F.ENQUEUE:
        return acts
    other = dice.choice(same)
    swapped = list(acts)
    for at, by in ((one, acts[other]), (other, acts[one])):
        swapped[at] = replace(acts[at], value=by.value, offset=by.offset, seen=by.seen)
    return swapped


def _other_element(dice: Random, act: Act, others: Acts) -> Act:
    values = [a.value for a in others]
    return replace(act, value=dice.choice([None, None, dice.randint(1, MOST), *values]))


def _other_list(dice: Random, act: Act, others: Acts) -> Act:
    seen = list(act.seen)
    how = dice.randrange(5)
    if how == 0:
        seen.insert(dice.randint(0, len(seen)), dice.randint(1, MOST))
    elif how == 1 and others:
        seen = list(dice.choice(others).seen)
    elif how == 2:
        dice.shuffle(seen)
    elif how == 3 and seen:
        seen[dice.randrange(len(seen))] = dice.randint(1, MOST)
    elif seen:
        del seen[dice.randrange(len(seen))]
    return replace(act, seen=tuple(seen))


def _other_count(dice: Random, act: Act, others: Acts) -> Act:
    return replace(act, value=(act.value or 0) + dice.choice((-3, -1, 1, 1, 2)))


def _other_offset(dice: Random, act: Act, others: Acts) -> Act:
    return (
        replace(act, offset=dice.randint(0, 4))
        if dice.random() < 0.5
        else replace(act, offset=None)
    )


def _other_token(dice: Random, act: Act, others: Acts) -> Act:
    return replace(act, offset=dice.randint(1, 4))


def _other_release(dice: Random, act: Act, others: Acts) -> Act:
    return replace(act, failed=not act.failed, refused=not act.failed)


_CHANGES: dict[F, Callable[[Random, Act, Acts], Act]] = {
    F.DEQUEUE: _other_element,
    F.LIST: _other_list,
    F.COUNT: _other_count,
    F.APPEND: _other_offset,
    F.ACQUIRE: _other_token,
    F.RELEASE: _other_release,
}
MAKERS = {"queue": queue, "set": set_, "counter": counter, "log": log, "lock": lock}


def _at(f: F, call: int, end: int, *seen: int, **how: int) -> Act:
    return Act(f, 0, call, end, seen=seen, **how)  # type: ignore[arg-type]


def _by(process: int, f: F, call: int, lasts: int | None = 60, offset: int | None = None) -> Act:
    """Return a process that continues after an operation of unknown outcome."""
    return Act(f, process, call, None if lasts is None else call + lasts, offset=offset)


PLANTS: dict[str, list[Acts]] = {
    "queue": [
        [
            *(_at(F.ENQUEUE, 0, 100, value=1), _at(F.ENQUEUE, 200, 300, value=2)),
            *(_at(F.DEQUEUE, 400, 500, value=2), _at(F.DEQUEUE, 600, 700, value=1)),
        ],
        [
            *(_at(F.ENQUEUE, 0, 100, value=1), _at(F.ENQUEUE, 300, 400, value=2)),
            *(_at(F.DEQUEUE, 500, 600, value=1), _at(F.DEQUEUE, 900, 999, value=2)),
            _at(F.DEQUEUE, 150, 850),
        ],
        [
            *(_at(F.ENQUEUE, 0, 100, value=1), _at(F.ENQUEUE, 0, 400, value=2)),
            *(_at(F.DEQUEUE, 500, 600, value=1), _at(F.DEQUEUE, 700, 800, value=1)),
        ],
    ],
    "set": [
        [
            *(_at(F.ADD, 0, 900, value=1), _at(F.ADD, 0, 900, value=2)),
            *(_at(F.LIST, 200, 400, 1), _at(F.LIST, 200, 400, 2), _at(F.LIST, 950, 990, 1, 2)),
        ],
        [
            *(_at(F.ADD, 200, 300, value=2), _at(F.ADD, 500, 600, value=1)),
            *(_at(F.LIST, 0, 800, 1), _at(F.LIST, 900, 999, 1, 2)),
        ],
    ],
    "counter": [
        [
            *(_at(F.ADD, 0, 900, value=1), _at(F.ADD, 100, 900, value=1)),
            *(_at(F.COUNT, 200, 300, value=1), _at(F.COUNT, 500, 600, value=0)),
        ],
        [
            *(_at(F.ADD, 0, 900, value=1), _at(F.ADD, 400, 500, value=1)),
            *(_at(F.COUNT, 200, 800, value=2), _at(F.COUNT, 600, 700, value=1)),
        ],
        [
            *(_at(F.ADD, 0, 900, value=1), _at(F.ADD, 100, 200, value=1)),
            *(_at(F.COUNT, 300, 400, value=1), _at(F.COUNT, 600, 700, value=2)),
        ],
        [
            *(_at(F.ADD, 0, 900, value=2), _at(F.ADD, 0, 900, value=3)),
            *(_at(F.COUNT, 200, 300, value=2), _at(F.COUNT, 500, 600, value=3)),
        ],
    ],
    "log": [
        [
            *(_at(F.APPEND, 0, 100, value=1, offset=0), _at(F.APPEND, 600, 700, value=2)),
            *(_at(F.APPEND, 300, 400, value=3, offset=2), _at(F.APPEND, 300, 900, value=4)),
        ],
        [
            *(_at(F.APPEND, 0, 100, value=1), _at(F.APPEND, 200, 300, value=2)),
            *(_at(F.LIST, 350, 450, 1, 2, 1), _at(F.LIST, 500, 700, 1)),
        ],
        [
            *(_at(F.APPEND, 0, 100, value=1, offset=1), _at(F.APPEND, 200, 300, value=2)),
            *(_at(F.APPEND, 400, 500, value=3, offset=1), _at(F.APPEND, 200, 300, value=4)),
        ],
        [
            *(_at(F.APPEND, 0, 100, value=1), _at(F.APPEND, 150, 200, value=2)),
            *(_at(F.LIST, 400, 500, 1), _at(F.APPEND, 600, 700, value=3, offset=3)),
        ],
    ],
    "lock": [  # whose hold a release of unknown outcome ended is not known, and yet all are wrong
        [
            *(_by(1, F.ACQUIRE, 0), _by(0, F.ACQUIRE, 400, None), _by(0, F.RELEASE, 800, None)),
            _by(0, F.ACQUIRE, 1200),
        ],
        [
            *(_by(0, F.ACQUIRE, 0), _by(0, F.RELEASE, 400, None), _by(0, F.RELEASE, 800)),
            *(_by(0, F.ACQUIRE, 1200), _by(1, F.ACQUIRE, 1600)),
        ],
        [
            *(_by(1, F.ACQUIRE, 0, offset=3), _by(1, F.RELEASE, 400)),
            *(_by(0, F.ACQUIRE, 800, None), _by(0, F.RELEASE, 1200, None)),
            _by(0, F.ACQUIRE, 1600, offset=2),
        ],
    ],
}
PLANTED = {"lock": 0.07}  # how often one of these is drawn; of the others:
OFTEN = 0.4


def _planted(dice: Random, acts: Acts, unsure: float) -> Acts:
    """A violation by itself, with times a little different, and unknown outcomes."""
    made = []
    for number, act in enumerate(acts):
        call = act.call + dice.randint(-150, 150)
        end = max(call + 1, (act.end or 0) + dice.randint(-150, 150))
        lossy = act.f not in (F.LIST, F.COUNT) and dice.random() < unsure
        act = replace(act, process=number, call=call + 500, end=None if lossy else end + 500)
        if lossy:
            act = replace(act, offset=None, value=None if act.f is F.DEQUEUE else act.value)
        made.append(act)
    if acts[-1].f is F.DEQUEUE and dice.random() < 0.3:
        made.append(Act(F.DEQUEUE, len(acts), dice.randint(300, 1300)))
    return made


def _jolted(dice: Random, acts: Acts) -> Acts:
    """The same at slightly different times, and perhaps with an operation that fails."""
    made = []
    for act in acts:
        call, lasts = 500 + act.call + dice.randint(-150, 150), dice.randint(10, 90)
        made.append(replace(act, call=call, end=None if act.end is None else call + lasts))
    if dice.random() < 0.3:
        made.append(Act(F.ACQUIRE, 2, dice.randint(300, 2000)))
    return made


def drawn(dice: Random, kind: str) -> tuple[Act, ...]:
    """Return a history that is mostly illegal."""
    unsure = dice.choice((0.0, 0.15, 0.4))
    if dice.random() < PLANTED.get(kind, OFTEN):
        acts = dice.choice(PLANTS[kind])
        how = _jolted(dice, acts) if kind == "lock" else _planted(dice, acts, unsure / 2)
        return tuple(how)
    maker = _Maker(dice, unsure, dice.choice(REACHES))
    MAKERS[kind](dice, maker)
    acts = maker.acts
    for _ in range(dice.choice((0, 1, 1, 2))):
        acts = dice.choice((_moved, _changed, _swapped, _swapped, _failed))(dice, acts)
    return tuple(acts)
