"""Plans as people write them: repeated faults, links as targets, several files as one."""

from dataclasses import replace

import pytest
from by_hand import NODES, kill

from harness import plans
from harness.contracts import Node, PlannedFault
from harness.errors import BadRequest
from harness.trial import Trial
from nemesis._plan import plan as _plan
from nemesis._plan import toml as _written

NAMESERVER = Node("nameserver-1", "nameserver")


def fault(more: str, kind: str = "kill") -> str:
    return f'[[fault]]\nkind = "{kind}"\nat_s = 5.0\nfor_s = 2.0\n{more}\n'


def loaded(text: str) -> tuple[PlannedFault, ...]:
    return _plan.load(text, "p.toml").faults


@pytest.mark.parametrize(
    ("repeat", "begins"),
    [
        ("{ times = 3, every_s = 10.0 }", [5.0, 15.0, 25.0]),
        ("{ every_s = 10, until_s = 30 }", [5.0, 15.0, 25.0]),
        ("{ every_s = 10, until_s = 27.0 }", [5.0, 15.0, 25.0]),
        ("{ every_s = 10, until_s = 26.9 }", [5.0, 15.0]),
        ("{ times = 1, every_s = 10.0 }", [5.0]),
    ],
)
def test_a_fault_is_repeated(repeat: str, begins: list[float]) -> None:
    """So many times, or as long as there is time for a whole one; each is explicit."""
    plan = loaded(fault(f'target = "master"\nrepeat = {repeat}'))
    assert [each.at_s for each in plan] == begins
    assert {(each.kind, each.for_s, each.target) for each in plan} == {("kill", 2.0, "master")}


def test_a_repeated_plan_is_saved_expanded() -> None:
    """What is saved has no repetition left, and reads back as the same plan."""
    plan = loaded(fault('target = "master"\nrepeat = { times = 4, every_s = 3.0 }'))
    saved = _plan.dump(plan)
    assert "repeat" not in saved
    assert loaded(saved) == plan


def test_neighbours_are_repeated_in_turn() -> None:
    """Cut, kill, cut, kill; `fault-0` is the one of the same round, and later the last of it."""
    again = "repeat = { times = 2, every_s = 20.0 }"
    text = (
        fault(f'target = "master"\n{again}', "partition")
        + fault(f'target = "fault-0"\n{again}')
        + fault('target = "broker but fault-0"', "pause")
    )
    plan = loaded(text)
    assert [each.kind for each in plan] == ["partition", "kill", "partition", "kill", "pause"]
    assert [each.target for each in plan[1::2]] == ["fault-0", "fault-2"]
    assert plan[4].target == "broker but fault-2"


def test_a_condition_repeats_without_a_time() -> None:
    """Each after so many more acknowledgements, whenever that is."""
    after = 'target = "master"\nafter = "5,000 acks within 9 s"\nrepeat = { times = 3 }'
    assert [each.at_s for each in loaded(fault(after))] == [5.0] * 3


@pytest.mark.parametrize(
    ("repeat", "sentence"),
    [
        ("3", "line 6: repeat: must read like"),
        ("{ time = 3 }", "must read like"),
        ("{ times = 3 }", "needs every_s"),
        ("{ every_s = 3.0 }", "needs times, or until_s"),
        ("{ times = 3, every_s = 3.0, until_s = 9.0 }", "and not both"),
        ("{ times = 0, every_s = 3.0 }", "times must be a positive number"),
        ("{ times = 2.5, every_s = 3.0 }", "times must be a whole number"),
        ("{ times = 3, every_s = -1.0 }", "every_s must be a positive number"),
        ("{ times = true, every_s = 1.0 }", "times must be a positive number"),
        ("{ every_s = 3.0, until_s = 6.0 }", "makes 0 faults"),
        ("{ times = 99999, every_s = 1.0 }", "makes 99,999 faults, not 1 to 1,000; let there"),
        (
            "{ every_s = 0.02, until_s = 60.0 }",
            "line 6: repeat: makes 2,6.. faults, not 1 to 1,000",
        ),
        ("{ every_s = 1e-300, until_s = 60.0 }", "line 6: repeat: every_s must be at least 0.01"),
        ("{ every_s = 0.01, until_s = 1e308 }", "makes 1,000,000,001 faults"),
    ],
)
def test_a_repetition_that_makes_no_sense_is_refused(repeat: str, sentence: str) -> None:
    """With line and key."""
    with pytest.raises(BadRequest, match=sentence):
        loaded(fault(f'target = "master"\nrepeat = {repeat}'))


def test_lines_are_those_of_the_file() -> None:
    """Each of a repeated fault is found where it is written."""
    again = 'target = "broker-1"\nrepeat = { times = 2, every_s = 20.0 }'
    assert _written.lines(fault(again) + fault('target = "master"')) == (" line 2",) * 2 + (
        " line 8",
    )


def test_a_plan_that_never_heals_is_refused() -> None:
    """By name: what is broken has to be mended."""
    with pytest.raises(BadRequest, match=r"line 4: for_s: is without end.*must heal"):
        loaded(fault('target = "master"').replace("for_s = 2.0", "for_s = inf"))


# --------------------------------------------------------------------------------------- links


@pytest.mark.parametrize(
    ("kind", "target", "victim", "params"),
    [
        (
            "partition",
            "master -> slave",
            "master",
            {"shape": "one-way", "from": "slave", "direction": "out"},
        ),
        ("partition", "broker-1 <-> client", "broker-1", {"shape": "isolate", "from": "client"}),
        ("loss", "broker-1 -> broker-2", "broker-1", {"from": "broker-2", "direction": "out"}),
        ("loss", "master <-> nameserver", "master", {"from": "nameserver", "direction": "both"}),
        ("delay", "slave -> master", "slave", {"from": "master", "direction": "out"}),
    ],
)
def test_a_link_is_a_target(kind: str, target: str, victim: str, params: dict[str, str]) -> None:
    """`A -> B` is what A sends to B, as the parameters of the fault say it."""
    (only,) = loaded(fault(f'target = "{target}"', kind))
    assert only.target == victim
    assert {name: only.params[name] for name in params} == params


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("kill", "", "'master -> slave' is a link, and this fault does not affect links"),
        ("loss", 'params = { direction = "in" }', "sets direction = 'out', but params sets"),
        ("partition", 'params = { shape = "isolate" }', "sets shape = 'one-way'"),
    ],
)
def test_a_link_must_be_one(kind: str, more: str, sentence: str) -> None:
    """For faults of links, and without contradiction."""
    with pytest.raises(BadRequest, match=sentence):
        loaded(fault(f'target = "master -> slave"\n{more}', kind))


@pytest.mark.parametrize("target", ["master -> ", " -> slave", "master ->", "<-> slave", " -> "])
@pytest.mark.parametrize("kind", ["partition", "loss", "kill"])
def test_a_link_has_two_ends(kind: str, target: str) -> None:
    """An omitted end would mean all nodes."""
    with pytest.raises(BadRequest, match=r"line 5: target: .* names only one end of a link; write"):
        loaded(fault(f'target = "{target}"', kind))


def test_trials_may_aim_at_links() -> None:
    """Drawn plans expand them as well."""
    trial = Trial(faults=("loss",), targets=("broker-1 -> broker-2",))
    plan = _plan.draw(trial, 1.5, NODES)
    assert {(each.target, each.params["from"]) for each in plan} == {("broker-1", "broker-2")}


# -------------------------------------------------------------------------------- merged, and met


def test_plans_are_joined_as_if_they_were_one() -> None:
    """One after the other; each still speaks of its own faults."""
    one = loaded(fault('target = "master"') + fault('target = "fault-0"', "pause"))
    whole = plans.join_plans([one, one])
    assert [each.target for each in whole] == ["master", "fault-0", "master", "fault-2"]
    assert loaded(_plan.dump(whole)) == whole


LISTED = 'target = ""\nparams = { shape = "links", cut = %s }'


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("kill", 'target = "brokr-1"', "line 5: target: fault 0 .*unknown target 'brokr-1'"),
        ("kill", 'target = "client"', "line 5: target: .*not hit by kill"),
        ("power", 'target = "client-1"', "line 5: target: .*not hit by power"),
        ("disk-full", 'target = "broker, client"', "line 5: target: .*not hit by disk-full"),
        ("membership", 'target = "one client"', "line 5: target: .*not hit by membership"),
        (
            "partition",
            'target = "master"\nparams = { from = "brokr" }',
            "line 6: params.from: .*unknown target 'brokr'",
        ),
        (
            "partition",
            LISTED % '{ broker-1 = ["broker-9"] }',
            "line 6: params.cut: .*unknown node 'broker-9'",
        ),
        (
            "partition",
            LISTED % '{ slave = ["broker-1"] }',
            "line 6: params.cut: .*unknown node 'slave'",
        ),
        ("kill", 'target = "master"\nuntil = "next"', "line 6: until: .*there is none; leave"),
        ("kill", 'target = "master"\nuntil = "next + 1 s"', "line 6: until: "),
        (
            "kill",
            'target = "master"\nafter = "previous is healed within 9 s"',
            "line 6: after: .*waits for the fault before it, and there is none",
        ),
    ],
)
def test_a_selector_without_nodes_is_refused(kind: str, more: str, sentence: str) -> None:
    """With file, line and key, before anything starts."""
    text = fault(more, kind)
    with pytest.raises(BadRequest, match=sentence) as refused:
        _plan.check(loaded(text), Trial(plan="p.toml"), 0.5, NODES, text=text)
    assert str(refused.value).startswith("p.toml line ")


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("partition", 'target = "broker-1"\nparams = { shape = "halves" }'),
        ("partition", 'target = "one broker"\nparams = { shape = "ring" }'),
        ("partition", 'target = "broker"\nparams = { shape = "ring" }'),
        ("partition", 'target = "2 server"\nparams = { shape = "bridge" }'),
        ("partition", 'params = { shape = "between", a = "broker-1", b = "broker-1" }'),
        ("partition", 'params = { shape = "link", a = "broker-1", b = "broker-1 but slave" }'),
        ("partition", 'target = "broker"\nparams = { from = "broker-2" }'),
        ("partition", 'target = "master"\nparams = { from = "master" }'),
        ("partition", 'target = "cluster"'),
        ("partition", 'target = "broker-1 <-> broker-1"'),
        ("partition", 'target = "client-1"\nparams = { shape = "answers" }'),
        ("loss", 'target = "broker-1"\nparams = { from = "broker-1" }'),
        ("delay", 'target = "broker-1 -> broker-1"'),
        ("bandwidth", 'target = "client-1"\nparams = { from = "client-1", clients = true }'),
        ("membership", 'target = "nameserver"'),
        ("handover", 'target = "nameserver"'),
        ("membership", 'target = "broker, nameserver-1"'),
        ("kill", 'target = "broker but broker"'),
        ("kill", 'target = "in-set but broker"'),
        ("kill", 'target = "controller-leader but controller"'),
        ("kill", 'target = "one broker-1 but server"'),
        ("kill", 'target = "master but master"'),
    ],
)
def test_what_can_never_hit_anything_is_refused(kind: str, more: str) -> None:
    """Where the words alone say it: a node has no link to itself, and one node no halves."""
    text = fault(more, kind)
    sentence = r"p.toml line \d: (target|params): .*(hits nothing: |matches no node|cannot hit 'n)"
    with pytest.raises(BadRequest, match=sentence):
        _plan.check(loaded(text), Trial(plan="p.toml"), 0.5, (*NODES, NAMESERVER), text=text)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("partition", 'target = "one broker"\nparams = { from = "one broker" }'),
        ("partition", 'target = "broker"\nparams = { from = "slave", clients = true }'),
        ("partition", 'target = "minority broker"\nparams = { shape = "one", clients = true }'),
        ("partition", 'target = "server"\nparams = { shape = "ring" }'),
        ("partition", 'target = "client"'),
        ("partition", 'target = "fault-0"\nparams = { shape = "answers" }'),
        ("loss", 'target = "broker"\nparams = { from = "broker" }'),
        ("loss", 'target = "master"\nparams = { from = "master" }'),
        ("kill", 'target = "controller but controller-leader, broker but controller-1"'),
    ],
)
def test_what_may_hit_something_is_not_refused(kind: str, more: str) -> None:
    """Parts and random choices are known at the moment; several nodes may have a part."""
    text = fault('target = "master"') + fault(more, kind)
    _plan.check(loaded(text), Trial(plan="p.toml", short_faults=True), 0.5, NODES, text=text)


@pytest.mark.parametrize(
    "cut",
    [
        "{ broker-1 = [] }",
        '{ broker-1 = "broker-2" }',
        "{ broker-1 = [3] }",
        '{ broker-1 = ["broker-1"] }',
        '{ broker-2 = ["broker-1"], broker-1 = ["broker-2", "broker-1"] }',
    ],
)
def test_an_invalid_list_of_links_is_refused(cut: str) -> None:
    """For each node those that it loses."""
    with pytest.raises(BadRequest, match=r"line 6: params.cut: .*needs a list in `cut`, as in"):
        loaded(fault(LISTED % cut, "partition"))


@pytest.mark.parametrize(
    ("kind", "params", "takes"),
    [
        ("partition", "{ on_s = 1.0, off_s = 0.5 }", "2.5 s"),
        ("delay", "{ delay_s = 2.0, jitter_s = 1.0 }", "3 s"),
        ("fsync", "{ delay_s = 3.0 }", "3 s"),
        ("starve-cpu", "{ period_s = 2.0 }", "4 s"),
        ("restart", '{ order = "rolling", down_s = 3.0 }', "3 s"),
    ],
)
def test_one_too_short_for_what_it_does_is_refused(kind: str, params: str, takes: str) -> None:
    """Unless the trial allows it."""
    text = fault(f'target = "broker-1"\nparams = {params}', kind)
    sentence = f"line 4: for_s: .*lasts 2 s, but its parameters need {takes}"
    with pytest.raises(BadRequest, match=sentence):
        _plan.check(loaded(text), Trial(plan="p.toml"), 0.5, NODES, text=text)
    _plan.check(loaded(text), Trial(plan="p.toml", short_faults=True), 0.5, NODES, text=text)


@pytest.mark.parametrize(
    ("target", "takes"),
    [
        ("all broker", "12 s"),
        ("2 broker", "8 s"),
        ("minority broker, controller-1", "4 s"),
        ("broker-1, broker-2", "8 s"),
        ("slave", "4 s"),
        ("random broker", "4 s"),
    ],
)
def test_a_round_takes_as_long_as_all_its_turns(target: str, takes: str) -> None:
    """For the nodes that are certainly hit, one after the other."""
    params = '{ order = "rolling", down_s = 4.0 }'
    text = fault(f'target = "{target}"\nparams = {params}', "restart")
    sentence = f"line 4: for_s: .*its parameters need {takes}"
    with pytest.raises(BadRequest, match=sentence):
        _plan.check(loaded(text), Trial(plan="p.toml"), 0.5, NODES, text=text)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (
            'kind = "clock"\ntarget = ""\nparams = { skew_s = 9.0 }',
            "line 5: target: clock needs a target",
        ),
        (
            'kind = "crash"\ntarget = "broker"\n[fault.params]',
            "line 5: target: crash hits clients",
        ),
        (
            'kind = "bandwidth"\ntarget = "broker"\n[fault.params]\nper = "node"\n'
            'direction = "out"',
            "line 8: params.direction: bandwidth per node limits what",
        ),
        (
            'kind = "partition"\nparams.shape = "between"\nparams.a = "broker"',
            "line 5: params.b: partition of shape 'between' needs",
        ),
        (
            'kind = "partition"\nparams.shape = "isolate"\nparams.direction = "up"',
            "line 6: params.direction: must be one of out, in, not 'up'",
        ),
    ],
)
def test_the_value_at_fault_is_named(written: str, sentence: str) -> None:
    """Whichever way TOML lets it be written."""
    with pytest.raises(BadRequest, match=sentence):
        loaded(f"[[fault]]\nat_s = 5.0\nfor_s = 2.0\n{written}")


def test_the_value_at_fault_is_found_in_a_list_of_tables() -> None:
    """One may write all faults as one value."""
    one = '{ kind = "kill", at_s = 1.0, for_s = 2.0, target = "master" }'
    other = one.replace("2.0", "-2.0")
    with pytest.raises(BadRequest, match=r"p.toml line 3: for_s: must be a positive number"):
        loaded(f"fault = [\n    {one},\n    {other},\n]")


def test_a_part_of_a_plan_does_not_wait_for_omitted_faults() -> None:
    """What a fault before or after it would have ended, its own time ends."""
    whole = (
        kill(5.0, "master"),
        kill(6.0, "broker-1", after="previous is healed within 9 s", until="next + 1 s"),
        kill(7.0, "broker-2"),
    )
    (only,) = plans.keep_faults(whole, [1])
    assert (only.after, only.until) == ("", "")
    assert plans.keep_faults(whole, [0, 1, 2]) == whole


def test_the_longest_time_of_a_plan() -> None:
    """Also when every condition comes at the last moment."""
    whole = "cluster is whole within 60 s"
    assert _plan.longest_s((kill(1.0, "master"), kill(1.0, "master", after=whole))) == 66.0
    assert _plan.longest_s(()) == 0.0
    later = "cluster is whole + 7 s within 60 s"
    assert _plan.longest_s((kill(1.0, "master"), kill(1.0, "master", after=later))) == 73.0
    told = "event election + 7 s within 60 s"
    assert _plan.longest_s((kill(1.0, "master", after=told),)) == 73.0


@pytest.mark.parametrize("condition", ["cluster is whole", "event election"])
def test_one_that_waits_until_after_the_load_is_refused(condition: str) -> None:
    """What it waits for may come at once, but not what comes after that."""
    text = fault(f'target = "master"\nafter = "{condition} + 50 s within 5 s"')
    trial = Trial(plan="p.toml", short_faults=True, duration_s=56.0)
    with pytest.raises(BadRequest, match=r"line 6: after: .*may end at 57 s, after the load"):
        _plan.check(loaded(text), trial, 0.5, NODES, text=text)
    _plan.check(loaded(text), replace(trial, duration_s=57.0), 0.5, NODES, text=text)
