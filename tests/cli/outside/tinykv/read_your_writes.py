"""A client reads what it wrote last. Each key has one writer."""

from harness.contracts import CheckerPlugin, F, Finding, Reason, Result, Type, batches

COLUMNS = ["t", "op", "type", "f", "key", "value"]
SAMPLE = 5


def check(history, trial, spark):
    rows = [
        row
        for path in history.files["ops"]
        for batch in batches(path, COLUMNS)
        for row in batch.to_pylist()
    ]
    rows.sort(key=lambda row: (row["t"], row["op"], row["type"]))
    possible, reads, stale = {}, 0, []
    for row in rows:
        key = row["key"]
        if row["f"] == F.PUT:
            if row["type"] == Type.INVOKE:
                possible.setdefault(key, {None}).add(row["value"])
            elif row["type"] == Type.OK:
                possible[key] = {row["value"]}
            elif row["type"] == Type.FAIL:
                possible[key].discard(row["value"])
        elif row["f"] == F.GET and row["type"] == Type.OK:
            reads += 1
            if row["value"] not in possible.get(key, {None}):
                stale.append(
                    {
                        "at_s": row["t"] / 1e9,
                        "key": history.names["keys"][key],
                        "read": row["value"],
                        "written": max(possible[key] - {None}),
                    }
                )
    findings = ()
    if stale:
        message = f"{len(stale)} of {reads} reads did not return what the client wrote last"
        findings = (
            Finding("STALE_READ", len(stale), message, "read-your-writes", tuple(stale[:SAMPLE])),
        )
    reasons = () if reads else (Reason("NO_READS", "no read was answered; run it longer"),)
    return Result(
        "read-your-writes", findings, reasons, {"reads": reads}, {"read-your-writes": reads}
    )


PLUGIN = CheckerPlugin(
    check=check,
    findings=frozenset({"STALE_READ"}),
    reasons=frozenset({"NO_READS"}),
    decides=frozenset({"read-your-writes"}),
    needs_clocks=False,
)
