"""A cluster in plain Python, slow and obvious: what `SimCluster` is compared with."""

from dataclasses import dataclass, field


@dataclass
class SlowCluster:
    """Dictionaries of what is where; every question is answered by adding up from scratch.

    Pods are (name, cpu_milli, memory_bytes, gpu_milli); a GPU share takes the device with the least room that fits.
    """

    sizes: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)  # node -> cpu, memory, pods, devices
    cordoned: set[str] = field(default_factory=set)
    running: dict[str, str] = field(default_factory=dict)  # pod -> node
    device: dict[str, int] = field(default_factory=dict)  # pod -> device
    needs: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    leaves_s: dict[str, float] = field(default_factory=dict)

    def on(self, node):
        return [pod for pod, where in self.running.items() if where == node]

    def used(self, node):
        pods = self.on(node)
        return sum(self.needs[p][0] for p in pods), sum(self.needs[p][1] for p in pods), len(pods)

    def device_free(self, node):
        free = [1000] * self.sizes[node][3]
        for pod in self.on(node):
            if self.needs[pod][2]:
                free[self.device[pod]] -= self.needs[pod][2]
        return free

    def fits(self, pod, node):
        if node in self.cordoned:
            return False
        cpu, memory, slots, _ = self.sizes[node]
        used = self.used(node)
        need = self.needs[pod]
        return (
            (need[0] == 0 or used[0] + need[0] <= cpu)
            and (need[1] == 0 or used[1] + need[1] <= memory)
            and used[2] + 1 <= slots
            and (need[2] == 0 or any(free >= need[2] for free in self.device_free(node)))
        )

    def place(self, pod, node, now_s, lifetime_s):
        if self.needs[pod][2]:
            free = self.device_free(node)
            fitting = [(left, index) for index, left in enumerate(free) if left >= self.needs[pod][2]]
            self.device[pod] = min(fitting)[1]
        self.running[pod] = node
        if lifetime_s is not None:
            self.leaves_s[pod] = now_s + lifetime_s

    def remove(self, pod):
        self.running.pop(pod, None)
        self.device.pop(pod, None)
        self.leaves_s.pop(pod, None)

    def expire(self, now_s):
        for pod in [pod for pod, at_s in self.leaves_s.items() if at_s <= now_s]:
            self.remove(pod)

    def cpu_variance(self):
        shares = [self.used(node)[0] / size[0] for node, size in self.sizes.items()]
        mean = sum(shares) / len(shares)
        return sum((share - mean) ** 2 for share in shares) / len(shares)
