"""What remains to be judged, in the order in which one process alone would do it; the journal keeps what was."""

import heapq
from collections.abc import Callable, Mapping

from excite.attacks.protocol import Attack
from excite.evaluation.batch import Task
from excite.evaluation.journal import Journal
from excite.evaluation.shards import Engine

OnProgress = Callable[[str, int, int], None]


class Agenda:
    """A stage's batches may be judged in any order; the next stage regroups those that withstood, so it waits."""

    def __init__(self, attacks: Mapping[str, Attack], journal: Journal, batch_size: int) -> None:
        self._attacks, self._journal, self._batch_size = attacks, journal, batch_size
        self.waiting: list[Task] = []
        for name in attacks:
            self._open_stage(name)

    def work_off(self, engine: Engine, progress: OnProgress | None) -> None:
        running = 0
        while self.waiting or running:
            while self.waiting and running < engine.capacity:
                engine.submit(heapq.heappop(self.waiting))
                running += 1
            task, verdict = engine.collect()
            running -= 1
            state = self._journal.progress[task.attack]
            state.take(task, verdict)
            self._journal.add_flags(task.address, verdict.flags)
            batches = state.batches(self._batch_size)
            examples = sum(len(batch) for number, batch in enumerate(batches) if number in state.done)
            if len(state.done) == len(batches):
                self._close_stage(task.attack)
                self._open_stage(task.attack)
            self._journal.write()
            if progress is not None:
                stage, _ = self._attacks[task.attack].stages[task.stage]
                progress(f"{task.attack}/{stage}" if stage else task.attack, examples, sum(map(len, batches)))

    def _open_stage(self, name: str) -> None:
        """Put the open batches of the attack's next stage that has any on the list; a stage without any is over."""
        state, number = self._journal.progress[name], list(self._attacks).index(name)
        while (stage := len(state.stages)) < len(self._attacks[name].stages):
            for batch, examples in enumerate(state.batches(self._batch_size)):
                if batch not in state.done:
                    fell_at = tuple(state.fell_at[examples].tolist())
                    heapq.heappush(self.waiting, Task(number, stage, batch, name, tuple(examples.tolist()), fell_at))
            if len(state.done) < len(state.batches(self._batch_size)):
                return
            self._close_stage(name)

    def _close_stage(self, name: str) -> None:
        state = self._journal.progress[name]
        stage_name, _ = self._attacks[name].stages[len(state.stages)]
        state.finish_stage(stage_name or name)
