"""Runs as a job: tries ways around the blocked addresses of its own network, and prints them."""

import ctypes
import json
import socket
import struct
import sys

SO_BINDTODEVICE, SO_DONTROUTE = 25, 5
CLONE_NEWUSER, RTM_DELROUTE = 0x10000000, 25
SECONDS = 2.0
Option = tuple[int, int | bytes]


def connects(target: str, *options: Option) -> bool:
    """Whether a TCP connection to ``host:port`` succeeds with socket options."""
    host, _, port = target.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(SECONDS)
        try:
            for option, value in options:
                one.setsockopt(socket.SOL_SOCKET, option, value)
            one.connect((host.strip("[]"), int(port)))
        except OSError:
            return False
    return True


def is_answered(target: str, *options: Option) -> bool:
    """Whether a datagram to ``host:port`` is answered."""
    host, _, port = target.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(SECONDS)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            for option, value in options:
                one.setsockopt(socket.SOL_SOCKET, option, value)
            one.sendto(b"hello", (host, int(port)))
            one.recv(100)
        except OSError:
            return False
    return True


def may_open(family: int, kind: int) -> bool:
    """Whether a socket that needs a capability can be made."""
    try:
        socket.socket(family, kind, 0).close()
    except OSError:
        return False
    return True


def removes_route(network: str) -> bool:
    """Whether the route to ``a.b.c.d/n`` in the main table can be removed."""
    address, _, length = network.partition("/")
    route = struct.pack("=8BI", socket.AF_INET, int(length), 0, 0, 254, 0, 0, 0, 0)
    route += struct.pack("=HH4s", 8, 1, socket.inet_aton(address))
    head = struct.pack("=IHHII", 16 + len(route), RTM_DELROUTE, 5, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
        line.send(head + route)
        (number,) = struct.unpack("=i", line.recv(4096)[16:20])
    return bool(number == 0)


def main() -> None:
    """Try everything with each hidden target."""
    known = json.loads(sys.argv[1])
    device: Option = (SO_BINDTODEVICE, b"tap0\0")
    ways: dict[str, tuple[Option, ...]] = {
        "plain": (),
        "bound to the interface": (device,),
        "without routes": ((SO_DONTROUTE, 1),),
        "both": (device, (SO_DONTROUTE, 1)),
    }
    done = [
        f"tcp {one} {way}" for one in known["tcp"] for way in ways if connects(one, *ways[way])
    ]
    done += [
        f"udp {one} {way}" for one in known["udp"] for way in ways if is_answered(one, *ways[way])
    ]
    done += ["raw socket"] * may_open(socket.AF_INET, socket.SOCK_RAW)
    done += ["packet socket"] * may_open(socket.AF_PACKET, socket.SOCK_RAW)
    done += ["remove route"] * removes_route("169.254.0.0/16")
    if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0:
        done += ["remove route in a user namespace"] * removes_route("169.254.0.0/16")
    print(json.dumps(done))


if __name__ == "__main__":
    main()
