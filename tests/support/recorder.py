"""What was published and what became of it, and what each group was given."""

import threading
from collections import defaultdict


class Recorder:
    """Thread-safe. Messages are named by their payloads, unique in a run.

    Attributes:
        committed: (partition, offset) by name, of transactions whose COMMIT returned.
        undone: Names of what was rolled back.
        deliveries: Per group, (name, partition, offset, epoch) in the order of hand-over.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.committed = {}
        self.undone = set()
        self.deliveries = defaultdict(list)
        self.problems = []

    def commit(self, sent):
        with self.lock:
            self.committed.update(sent)

    def undo(self, names):
        with self.lock:
            self.undone.update(names)

    def deliver(self, group, messages):
        with self.lock:
            self.deliveries[group] += [(m.value, m.partition, m.offset, m.epoch) for m in messages]

    def missing(self, group):
        with self.lock:
            return self.committed.keys() - {name for name, *_ in self.deliveries[group]}

    def check(self, group):
        """Every committed message at its place, nothing that was rolled back, offsets rising per partition and epoch."""
        assert not self.problems
        assert not self.missing(group), f"{group} lost {len(self.missing(group))} of {len(self.committed)}"
        newest = defaultdict(lambda: -1)
        for name, partition, offset, epoch in self.deliveries[group]:
            assert name not in self.undone, f"{group} was given {name}, which was rolled back"
            assert self.committed[name] == (partition, offset)
            assert offset > newest[partition, epoch], f"{group}: {partition}@{offset} after {newest[partition, epoch]}"
            newest[partition, epoch] = offset
