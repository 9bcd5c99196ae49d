"""Changes the wall clock of running processes, and of no others. It runs on their node.

    python -S -s wall_clock.py set GROUP AHEAD_NS RATE
    python -S -s wall_clock.py read|clear GROUP

Programs read clocks through a small library that the kernel maps into each process, the vDSO. In
every process of the group, the three functions there that return the wall clock get a jump to our
code in the unused end of that mapping. It asks the kernel, and adds an offset to the answer. So it
works for programs in C, Java, Go or Python, at any moment, without root and without a compiler. The
changed pages belong to the process alone: no other clock changes, and the change ends with the
process. The monotonic clock, and so every timer, stays as it is.

The processes are stopped during the change. The answer is measured: the code and the data in the
process are run here, and compared with the kernel's clock.

The machine code is for x86-64; other machines are refused with an error. It was made by `as` from:

    anchor: .quad 0        frac: .quad 0        ahead: .quad 0
    clock_gettime:                              gettimeofday: test rdi, rdi
            mov eax, 228                                je 3f
            syscall                                     push rdi
            test eax, eax                               push rsi
            jne 1f                                      sub rsp, 16
            test edi, edi                               mov rsi, rsp
            je 2f                                       xor edi, edi
            cmp edi, 5                                  call clock_gettime
            jne 1f                                      mov rax, [rsp]
    2:      mov rax, [rsi]                              mov rdx, [rsp+8]
            imul rax, rax, 1000000000                   add rsp, 16
            add rax, [rsi+8]                            pop rsi
            mov r8, rax                                 pop rdi
            sub rax, [rip+anchor]                       mov [rdi], rax
            imul qword ptr [rip+frac]                   mov rax, rdx
            shrd rax, rdx, 32                           xor edx, edx
            add rax, r8                                 mov ecx, 1000
            add rax, [rip+ahead]                        div rcx
            cqo                                         mov [rdi+8], rax
            mov ecx, 1000000000                 3:      test rsi, rsi
            idiv rcx                                    je 4f
            mov [rsi], rax                              mov qword ptr [rsi], 0
            mov [rsi+8], rdx                    4:      xor eax, eax
            xor eax, eax                                ret
    1:      ret
    time:   push rdi, and as above;  mov rax, [rsp]; test rdi, rdi; je 5f; mov [rdi], rax; 5: ret
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable

CODE = bytes.fromhex(
    "b8e40000000f0585c0754a85ff740583ff057541488b064869c000ca9a3b480346084989c0482b05bcffffff"
    "48f72dbdffffff480facd0204c01c0480305b6ffffff4899b900ca9a3b48f7f94889064889560831c0c34885"
    "ff743357564883ec104889e631ffe895ffffff488b0424488b5424084883c4105e5f4889074889d031d2b9e8"
    "03000048f7f1488947084885f6740748c7060000000031c0c3574883ec104889e631ffe854ffffff488b0424"
    "4883c4105f4885ff7403488907c3"
)
DATA = struct.Struct("<qqq")  # anchor, frac, ahead; in front of the code
PLACES = {  # offsets of our functions
    "__vdso_clock_gettime": 0x18,
    "__vdso_gettimeofday": 0x6E,
    "__vdso_time": 0xB5,
}
KEPT = DATA.size + len(CODE)  # offset of the bytes that the jumps replaced
JUMP_BYTES = 5
WHOLE = KEPT + JUMP_BYTES * len(PLACES)
ALIGNED = 64
X86_64, DYNAMIC_SYMBOLS = 62, 11  # ELF numbers
STOPPED_WITHIN_S = 5.0
APART_S = 0.05  # between the two readings of a rate
READINGS = 5


class ClockError(Exception):
    """The change is impossible here; the text says why."""


class Vdso:
    """The vDSO of one process: its functions, and the room for our code."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        begin, end = _mapped(pid)
        self.memory = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        image = os.pread(self.memory, end - begin, begin)
        if len(image) < 64 or image[4] != 2 or struct.unpack_from("<H", image, 18)[0] != X86_64:
            raise ClockError("clocks are shifted by code for x86-64, and this is another machine")
        self.entries = {name: begin + at for name, at in _functions(image).items()}
        room = -(-_length(image) // ALIGNED) * ALIGNED
        if room + WHOLE > len(image) or self.entries.keys() != PLACES.keys():
            raise ClockError("this kernel's vDSO has no room for another clock")
        self.room = begin + room
        held = image[room : room + WHOLE]
        self.ours = held[DATA.size : KEPT] == CODE
        if not self.ours and held.strip(b"\0"):
            raise ClockError("this kernel's vDSO has no room for another clock")

    def jump(self, name: str) -> bytes:
        """Return the jump from the beginning of a function to our code."""
        to = self.room + PLACES[name]
        return b"\xe9" + struct.pack("<i", to - self.entries[name] - JUMP_BYTES)

    def shifted(self) -> bool:
        """Return whether all functions jump to our code."""
        return self.ours and all(
            os.pread(self.memory, JUMP_BYTES, at) == self.jump(name)
            for name, at in self.entries.items()
        )

    def shift(self, ahead_ns: int, rate: float) -> None:
        """Set the clock. The processes of the group must be stopped."""
        data = DATA.pack(time.time_ns(), round((rate - 1) * (1 << 32)), ahead_ns)
        if not self.ours:
            were = (os.pread(self.memory, JUMP_BYTES, at) for at in self.entries.values())
            self._write(self.room, data + CODE + b"".join(were))
            self.ours = True
        self._write(self.room, data)
        for name, at in self.entries.items():
            self._write(at, self.jump(name))

    def restore(self) -> None:
        if not self.shifted():
            return
        kept = os.pread(self.memory, WHOLE, self.room)[KEPT:]
        self._write(self.room, DATA.pack(0, 0, 0))  # for threads that are inside
        for number, at in enumerate(self.entries.values()):
            self._write(at, kept[number * JUMP_BYTES :][:JUMP_BYTES])

    def measure(self) -> dict[str, float]:
        """Return how far the process's clock is ahead of the kernel's, and its rate."""
        if not self.shifted():
            return {"ahead_s": 0.0, "rate": 1.0}
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(os.pread(self.memory, KEPT, self.room))
        place = ctypes.addressof(ctypes.c_char.from_buffer(page))
        read = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(place + DATA.size)
        first, true_first = _reading(read)
        time.sleep(APART_S)
        last, true_last = _reading(read)
        rate = (last - first) / (true_last - true_first)
        return {"ahead_s": round((last - true_last) / 1e9, 6), "rate": round(rate, 4)}

    def _write(self, at: int, data: bytes) -> None:
        try:
            os.pwrite(self.memory, data, at)
        except OSError as e:
            raise ClockError(
                f"the kernel keeps us from the memory of another process ({e.strerror}), so its"
                " clock cannot be shifted; try: sudo sysctl kernel.yama.ptrace_scope=0"
            ) from e


def _mapped(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            if line.rstrip().endswith("[vdso]"):
                begin, end = line.split()[0].split("-")
                return int(begin, 16), int(end, 16)
    raise ClockError(f"process {pid} has no vDSO")


def _sections(image: bytes) -> list[tuple[int, ...]]:
    at = struct.unpack_from("<Q", image, 40)[0]
    size, count = struct.unpack_from("<HH", image, 58)
    return [struct.unpack_from("<IIQQQQIIQQ", image, at + n * size) for n in range(count)]


def _length(image: bytes) -> int:
    """Return the length of the library; the rest of its last page is unused."""
    at = struct.unpack_from("<Q", image, 40)[0]
    size, count = struct.unpack_from("<HH", image, 58)
    return int(max([at + size * count, *(s[4] + s[5] for s in _sections(image))]))


def _functions(image: bytes) -> dict[str, int]:
    """Return the offsets of the functions that return the wall clock."""
    functions, sections = {}, _sections(image)
    for section in sections:
        if section[1] != DYNAMIC_SYMBOLS:
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name_at, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, at)
            start = names + name_at
            name = image[start : image.index(b"\0", start)].decode()
            if name in PLACES:
                functions[name] = value
    return {name: functions[name] for name in PLACES if name in functions}


def _reading(read: Callable[[int, int], int]) -> tuple[int, int]:
    """Return the process's clock and the kernel's at the same moment, in ns: the quickest of a few
    readings."""
    spec = (ctypes.c_int64 * 2)()
    readings = []
    for _ in range(READINGS):
        before = time.time_ns()
        read(0, ctypes.addressof(spec))
        after = time.time_ns()
        theirs = spec[0] * 1_000_000_000 + spec[1]
        readings.append((after - before, theirs, (before + after) // 2))
    _, theirs, true = min(readings)
    return theirs, true


# ------------------------------------------------------------------------------------- processes


def members(group: int) -> list[int]:
    """Return the living processes of a group."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        fields = _stat(f"/proc/{name}/stat")
        if len(fields) > 2 and fields[2] == str(group) and fields[0] not in "ZX":
            pids.append(int(name))
    return sorted(pids)


def _stat(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []  # the process has ended


class StoppedGroup:
    """Stops the processes of a group inside the block, at instructions that are not changed."""

    def __init__(self, group: int) -> None:
        self.group = group
        self.deadline_s = time.monotonic() + STOPPED_WITHIN_S

    def __enter__(self) -> list[Vdso]:
        while time.monotonic() < self.deadline_s:
            os.killpg(self.group, signal.SIGSTOP)
            pids = members(self.group)
            if all(_stands(pid) for pid in pids):
                mapped = [Vdso(pid) for pid in pids]
                if not any(_within(vdso) for vdso in mapped):
                    return mapped
                os.killpg(self.group, signal.SIGCONT)
            time.sleep(0.002)
        os.killpg(self.group, signal.SIGCONT)
        raise ClockError(f"the processes of group {self.group} did not stop")

    def __exit__(self, *exc: object) -> None:
        os.killpg(self.group, signal.SIGCONT)


def _stands(pid: int) -> bool:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    stats = [_stat(f"/proc/{pid}/task/{task}/stat") for task in tasks]
    return all(fields[0] in "TtZX" for fields in stats if fields)


def _within(vdso: Vdso) -> bool:
    """Return whether a thread is at an instruction that a jump replaces."""
    for task in os.listdir(f"/proc/{vdso.pid}/task"):
        try:
            with open(f"/proc/{vdso.pid}/task/{task}/syscall") as file:
                place = int(file.read().split()[-1], 16)
        except (OSError, ValueError, IndexError):
            continue
        if any(0 < place - at < JUMP_BYTES for at in vdso.entries.values()):
            return True
    return False


def main(verb: str, group: int, *words: str) -> dict[str, dict[str, float]]:
    """Carry out a command; return each process's clock, measured."""
    if not members(group):
        raise ClockError(f"no process of group {group} lives")
    if verb == "read":
        return {str(pid): Vdso(pid).measure() for pid in members(group)}
    with StoppedGroup(group) as mapped:
        for vdso in mapped:
            if verb == "set":
                vdso.shift(int(words[0]), float(words[1]))
            else:
                vdso.restore()
    return {str(vdso.pid): vdso.measure() for vdso in mapped}


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])))
    except (ClockError, OSError) as e:
        sys.exit(str(e))
