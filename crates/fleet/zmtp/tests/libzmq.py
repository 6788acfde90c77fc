"""Peers by libzmq. Prints what it finds, one JSON value a line, which libzmq.rs compares.

usage: libzmq.py PUB-PORT ROUTER-PORT
"""

import json
import sys
import threading

import zmq
from zmq.utils.monitor import recv_monitor_message

PUB, ROUTER = (f"tcp://127.0.0.1:{port}" for port in sys.argv[1:3])
context = zmq.Context()


def say(name, value):
    print(json.dumps([name, value]), flush=True)


def unconnected(kind, **options):
    made = context.socket(kind)
    made.linger = 0
    made.rcvtimeo = 20_000
    for option, value in options.items():
        made.setsockopt(getattr(zmq, option), value)
    return made


def socket(kind, endpoint, **options):
    made = unconnected(kind, **options)
    made.connect(endpoint)
    return made


def watched(kind, endpoint, events, **options):
    """With its monitor, which is there before anything can happen."""
    made = unconnected(kind, **options)
    seen = made.get_monitor_socket(events)
    made.connect(endpoint)
    return made, seen


def frames(made):
    return [frame.hex() for frame in made.recv_multipart()]


# Each is ready when it has its first message: what was published before is not for it.
heartbeats = {"HEARTBEAT_IVL": 50, "HEARTBEAT_TIMEOUT": 400, "HEARTBEAT_TTL": 1000}
all_of_it = socket(zmq.SUB, PUB, SUBSCRIBE=b"", **heartbeats)
some_of_it = socket(zmq.SUB, PUB, SUBSCRIBE=b"kv@")
raw = socket(zmq.XSUB, PUB)
raw.send(b"\x01kv@")
losses = all_of_it.get_monitor_socket(zmq.EVENT_DISCONNECTED)
say("subscribed", True)
for name, made in (("all", all_of_it), ("some", some_of_it), ("raw", raw)):
    assert made.recv_multipart()[0] == b"kv@begin", name
say("begun", True)
for name, made in (("all", all_of_it), ("some", some_of_it), ("raw", raw)):
    found = []
    while True:
        message = frames(made)
        if message[0] == b"kv@begin".hex():
            continue
        if message[0] == b"kv@end".hex():
            break
        found.append([frame if len(frame) < 99 else len(frame) // 2 for frame in message])
    say(name, found)

# Twenty heartbeats, each of which has 400 ms to be answered.
say("lost", bool(losses.poll(1000)) and recv_monitor_message(losses)["event"])

# A subscription that is cancelled ends, one that is made later begins.
some_of_it.setsockopt(zmq.UNSUBSCRIBE, b"kv@")
some_of_it.setsockopt(zmq.SUBSCRIBE, b"other")
say("changed", True)
say("other", frames(some_of_it))

dealer = socket(zmq.DEALER, ROUTER)
dealer.send_multipart([b"", (7).to_bytes(8, "big")])
say("dealer", [frames(dealer) for _ in range(3)])
request = socket(zmq.REQ, ROUTER)
request.send((8).to_bytes(8, "big"))
say("request", frames(request))
named = socket(zmq.DEALER, ROUTER, IDENTITY=b"somebody", **heartbeats)
named.send_multipart([b"", (9).to_bytes(8, "big")])
say("named", [frames(named) for _ in range(3)])

# Kinds that do not go with it, and another mechanism: never connected, and nobody minds.
for kind in (zmq.PULL, zmq.PAIR):
    wrong, seen = watched(kind, PUB, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    say("wrong", bool(seen.poll(20_000)))
    wrong.disable_monitor()
plain, seen = watched(
    zmq.SUB,
    PUB,
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED,
    PLAIN_USERNAME=b"a",
    PLAIN_PASSWORD=b"b",
    SUBSCRIBE=b"",
)
assert seen.poll(20_000)
say("plain", recv_monitor_message(seen)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED)
say("done", threading.active_count())
