"""What a fault came to, in a few words, from the evidence that was recorded of it. Pure.

An observation may bring its own words (`Observation.measured`); these are for those that bring
figures only.
"""

from collections.abc import Mapping
from typing import Any

MOST = 3  # figures, of evidence that nobody here knows


def measured(observation: Mapping[str, Any]) -> str:
    """Of a fault's `observation` as it is in the history."""
    if words := observation.get("measured"):
        return str(words)
    effect = observation.get("effect", {})
    if processes := effect.get("processes"):
        return _processes(processes)
    if threads := effect.get("threads"):
        return _threads(threads)
    if effect.get("probes"):
        return _probes(effect)
    plain = [(key, value) for key, value in effect.items() if isinstance(value, str | int | float)]
    return ", ".join(f"{key} {value}" for key, value in plain[:MOST])


def _processes(processes: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(
        f"{node}: process {seen.get('was', 0)} is {_word(seen)}" for node, seen in processes.items()
    )


def _word(seen: Mapping[str, Any]) -> str:
    same = seen.get("pid") == seen.get("was")
    return str(seen.get("is", "")) if same else f"gone, {seen.get('pid')} is {seen.get('is', '')}"


def _threads(threads: Mapping[str, str]) -> str:
    return ", ".join(
        f"{node}: {states.count('T')} of {len(states)} threads stopped"
        for node, states in threads.items()
    )


def _probes(effect: Mapping[str, Any]) -> str:
    sent, arrived = effect["probes"], effect.get("arrived", 0)
    lost = f"{100 * (sent - arrived) / sent:.0f} % of {sent} packets lost"
    links = f"{effect.get('links', 0)} links"
    kept = effect.get("open_links_passing")
    return f"{lost} on {links}" + (f", {kept} others pass all" if kept else "")
