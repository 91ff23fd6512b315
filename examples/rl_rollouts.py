"""Rollouts for reinforcement learning: many live sandboxes at once, several turns each, rewards from hidden tests.

    python examples/rl_rollouts.py [--sandboxes 256] [--turns 3]

Each sandbox lives through its whole rollout: a turn is a cell in its session, and the policy sees what it printed. The
reward comes from tests that the policy cannot read: they run in a cage of their own, after the rollout. `act` stands
for the policy; replace it by a batched call of your inference server.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from dataclasses import dataclass, field

from warmcell import AsyncSandbox, Case, ExecRequest, ExecutionTimeout, ProcessBackend, ajudge

TASK = "Read two numbers from stdin and print their greatest common divisor."
ATTEMPTS = (
    "a, b = map(int, input().split())\nprint(min(a, b))\n",
    "a, b = map(int, input().split())\nwhile b:\n    a, b = b, a % b\nprint(a)\n",
)
TESTS = [Case("12 18", "6"), Case("17 5", "1"), Case("100 75", "25")]
LIVE_AT_ONCE = 32


@dataclass
class Rollout:
    seed: int
    turns: list[tuple[str, str]] = field(default_factory=list)
    program: str = ""
    reward: float = 0.0


async def act(rollout: Rollout, random_numbers: random.Random) -> str:
    """The policy: the program that it writes next, from what it has seen."""
    rollout.program = random_numbers.choice(ATTEMPTS)
    return rollout.program


async def play(rollout: Rollout, turns: int, places: asyncio.Semaphore) -> Rollout:
    random_numbers = random.Random(rollout.seed)
    async with places, AsyncSandbox(timeout=10, memory_limit_mb=256) as sandbox:
        session = await sandbox.session("python")
        for _ in range(turns):
            program = await act(rollout, random_numbers)
            await sandbox.write_file("solution.py", program)
            check = "import subprocess; subprocess.run(['python3', 'solution.py'], input='12 18', text=True, timeout=5)"
            try:
                cell = await session.run(check)
                seen = cell.stdout + cell.stderr
            except ExecutionTimeout:
                seen = "timed out"
            rollout.turns.append((program, seen))
            if seen == "6\n":
                break
    return rollout


async def score(rollout: Rollout, backend: ProcessBackend) -> None:
    """A failure of ours is no reward of the program: `ajudge` reports it as `host_error`."""
    request = ExecRequest("python", rollout.program, timeout=5, memory_limit_mb=256)
    verdicts = await ajudge(request, TESTS, backend=backend)
    rollout.reward = sum(verdict.status == "accepted" for verdict in verdicts) / len(TESTS)


async def main(count: int, turns: int) -> None:
    places = asyncio.Semaphore(LIVE_AT_ONCE)
    rollouts = await asyncio.gather(*(play(Rollout(seed), turns, places) for seed in range(count)))
    async with ProcessBackend() as backend:
        await asyncio.gather(*(score(rollout, backend) for rollout in rollouts))
    rewards = [rollout.reward for rollout in rollouts]
    print(f"{count} rollouts, {sum(len(rollout.turns) for rollout in rollouts)} turns")
    print(f"mean reward {sum(rewards) / count:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Plays rollouts and scores them.")
    parser.add_argument("--sandboxes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args()
    asyncio.run(main(chosen.sandboxes, chosen.turns))
