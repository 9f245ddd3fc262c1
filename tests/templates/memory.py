"""usage: memory.py PID WORD ..: prints the words that are in what a process may write to. Exit code 2: it may not be read."""

import sys


def main(pid, *words):
    wanted, found = {word.encode() for word in words}, set()
    try:
        memory = open(f"/proc/{pid}/mem", "rb", buffering=0)
    except PermissionError:
        return 2
    with memory, open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            place, rights, *_ = line.split()
            start, end = (int(number, 16) for number in place.split("-"))
            if not rights.startswith("rw"):
                continue
            try:
                memory.seek(start)
                part = memory.read(end - start)
            except (OSError, ValueError, OverflowError):
                continue  # It is not there.
            found |= {word for word in wanted - found if word in part}
    print("\n".join(sorted(word.decode() for word in found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
