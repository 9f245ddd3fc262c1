"""Stands in for the guard of a server: speaks with it on descriptor 5, and tells on 3 how it has ended."""

import json
import os
import resource
import sys

server = int(sys.argv[-1])
assert os.get_inheritable(3) and sorted(map(int, os.listdir("/proc/self/fd")))[:6] == [0, 1, 2, 3, 4, 5]
settings = json.loads(os.pread(4, 1 << 20, 0).split(b"\0", 1)[0])["settings"]
said = os.read(5, 4096)
parent = [line for line in open(f"/proc/{server}/status") if line.startswith("PPid:")]
children = open("/proc/thread-self/children").read().split()
os.write(3, json.dumps({
    "said": said.decode(), "pid": server, "guard": os.getpid(), "settings": settings, "variable": os.environ["TOOLCRIB_GUARD"],
    "is_parent": int(parent[0].split()[1]) == os.getpid() and children == [str(server)], "is_leader": os.getsid(0) == os.getpid(),
}).encode())
if os.environ["TOOLCRIB_GUARD"] == "obey":
    os.write(5, b"obey")
    said = os.read(5, 4096)
if said == b"ok" and os.environ["TOOLCRIB_GUARD"] != "silent":
    os.write(5, b"go")
os.close(5)
_, status, usage = os.wait4(server, 0)
os.write(3, json.dumps({"status": os.waitstatus_to_exitcode(status), "cpu": usage.ru_utime + usage.ru_stime}).encode())
