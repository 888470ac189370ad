"""Train one model by several processes that average their gradients over plain TCP.

Every member of the gang starts this script. The member with NODE_RANK 0 listens on
MASTER_ADDR:MASTER_PORT, and the others connect to it. In each step they send their gradients; rank
0 adds them in the order of the ranks and returns the mean. So all members have the same weights.
With the same total batch, the result hardly depends on the number of members. A gang of one member
needs no connection. Needs only NumPy.

    python3 gang_allreduce_numpy.py --steps 300
"""

import argparse
import hashlib
import os
import socket
import struct
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import of NumPy: the machine is shared

import numpy as np

try:
    from tessera import train
except ImportError:  # outside a job, without the package
    train = None

FEATURES, HIDDEN, CLASSES = 64, 128, 8
HEAD = struct.Struct("!4sII")
MAGIC = b"gang"


class Gang:
    """A star of connections with rank 0 in the middle."""

    def __init__(self, rank, size, host, port, seconds):
        self.rank, self.size = rank, size
        self._peers = {}
        if size == 1:
            return
        if rank == 0:
            self._accept(host, port, seconds)
        else:
            self._connect(host, port, seconds)

    def _accept(self, host, port, seconds):
        deadline = time.monotonic() + seconds
        with socket.create_server((host, port), backlog=self.size) as listener:
            while len(self._peers) < self.size - 1:
                listener.settimeout(max(0.1, deadline - time.monotonic()))
                peer, _ = listener.accept()
                peer.settimeout(seconds)
                magic, rank, size = HEAD.unpack(receive(peer, HEAD.size))
                if magic != MAGIC or size != self.size or rank in self._peers:
                    peer.close()  # a stranger, or a member of another gang
                    continue
                self._peers[rank] = peer

    def _connect(self, host, port, seconds):
        deadline = time.monotonic() + seconds
        while True:
            try:
                peer = socket.create_connection((host, port), timeout=seconds)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(HEAD.pack(MAGIC, self.rank, self.size))
        self._peers[0] = peer

    def mean(self, mine):
        """The mean of the arrays of all members, bit-identical for all."""
        if self.size == 1:
            return mine
        if self.rank:
            self._peers[0].sendall(mine.tobytes())
            return np.frombuffer(receive(self._peers[0], mine.nbytes), dtype=mine.dtype)
        total = mine.copy()
        for rank in range(1, self.size):
            total += np.frombuffer(receive(self._peers[rank], mine.nbytes), dtype=mine.dtype)
        total /= self.size
        for rank in range(1, self.size):
            self._peers[rank].sendall(total.tobytes())
        return total

    def close(self):
        """Close the connections."""
        for peer in self._peers.values():
            peer.close()


def receive(peer, size):
    """Exactly ``size`` bytes."""
    pieces = bytearray()
    while len(pieces) < size:
        piece = peer.recv(min(size - len(pieces), 1 << 20))
        if not piece:
            raise ConnectionError("a member of the gang has left")
        pieces += piece
    return bytes(pieces)


def make_batch(step, size, rank, seed):
    """The part of one rank of a batch; it depends only on step and rank."""
    rng = np.random.default_rng([seed, step, rank])
    truth = np.random.default_rng(seed).normal(size=(FEATURES, CLASSES))
    features = rng.normal(size=(size, FEATURES))
    labels = (features @ truth + np.tanh(features[:, :CLASSES])).argmax(axis=1)
    return features.astype(np.float32), labels


def make_weights(seed):
    """The initial weights, equal for all members, as one flat array."""
    rng = np.random.default_rng(seed + 1)
    first = rng.normal(0, FEATURES**-0.5, FEATURES * HIDDEN)
    second = rng.normal(0, HIDDEN**-0.5, HIDDEN * CLASSES)
    return np.concatenate([first, second]).astype(np.float32)


def loss_and_gradient(weights, features, labels):
    """Mean cross-entropy of a two-layer network, and its gradient as one flat array."""
    first = weights[: FEATURES * HIDDEN].reshape(FEATURES, HIDDEN)
    second = weights[FEATURES * HIDDEN :].reshape(HIDDEN, CLASSES)
    hidden = np.maximum(features @ first, 0)
    scores = hidden @ second
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels] + 1e-9).mean()
    chances[rows, labels] -= 1
    error = chances / len(labels)
    back = (error @ second.T) * (hidden > 0)
    gradient = np.concatenate([(features.T @ back).ravel(), (hidden.T @ error).ravel()])
    return np.concatenate([[loss], gradient]).astype(np.float32)


def main():
    """Train together, report every step, and show that all members have the same weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=1024, help="of the whole gang")
    parser.add_argument("--rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for others")
    options = parser.parse_args()

    rank, size = int(os.environ.get("NODE_RANK", "0")), int(os.environ.get("NNODES", "1"))
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    port = int(os.environ.get("MASTER_PORT", "29500"))
    gang = Gang(rank, size, host, port, options.timeout)
    print(f"rank {rank} of {size} met the others at {host}:{port}", flush=True)
    weights = make_weights(options.seed)
    share = max(1, options.batch // size)
    for step in range(options.steps):
        began = time.perf_counter()
        features, labels = make_batch(step, share, rank, options.seed)
        mean = gang.mean(loss_and_gradient(weights, features, labels))
        loss = float(mean[0])
        weights = weights - np.float32(options.rate) * mean[1:]
        seconds = time.perf_counter() - began
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step} loss {loss:.4f} ({seconds * 1000:.1f} ms)", flush=True)
        if train is not None:
            train.report(step=step, samples=share, step_seconds=seconds, loss=loss)
            if leave_together(gang, train.should_yield()):
                print(f"asked to leave at step {step}", flush=True)
                break
    gang.close()
    print(f"weights {hashlib.sha256(weights.tobytes()).hexdigest()[:16]}", flush=True)


def leave_together(gang, asked):
    """Whether any member got the notice to leave; then all leave after the same step."""
    return bool(gang.mean(np.array([float(asked)], dtype=np.float32))[0] > 0)


if __name__ == "__main__":
    try:
        main()
    except (OSError, struct.error) as error:
        sys.exit(f"the gang is broken: {error}")
