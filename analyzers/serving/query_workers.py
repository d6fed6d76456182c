"""Processes that answer queries: a fixed number, each with one query at a time."""

from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from queue import Queue
from threading import Lock

from analyzers.archive.process.child_process import start_child
from analyzers.archive.sandbox.bounded_queries import Question
from analyzers.serving import query_worker
from analyzers.serving.query_worker import QuerySource

IDLE_S = 0.5
"""Longest wait for a worker whose answer has ended to be free again; then it is replaced."""


class _Worker:
    """One process. It opens its source at once, and is asked when it is ready."""

    def __init__(self, source: QuerySource) -> None:
        self.process, ours = start_child(query_worker.__name__)
        self.channel = Connection(ours.detach())
        self.channel.send(source)

    def ask(self, question: Question, out: int) -> None:
        """Have it answer a query into a pipe. Raises OSError: it has ended by itself."""
        self.channel.send(question)
        send_handle(self.channel, out, None)

    def is_free(self) -> bool:
        """Tell whether its answer has ended, and it can be asked again."""
        try:
            return self.channel.poll(IDLE_S) and self.channel.recv_bytes() == query_worker.IDLE
        except (EOFError, OSError):
            return False

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.channel.close()


class QueryWorkers:
    """Answers queries over one source. For any thread."""

    def __init__(self, source: QuerySource, count: int) -> None:
        """Start ``count`` processes."""
        self._source = source
        self._lock = Lock()
        self._workers = {_Worker(source) for _ in range(count)}
        self._free: Queue[_Worker] = Queue()
        self.replaced = 0
        """Workers that were ended with their query, or ended by themselves."""
        for worker in self._workers:
            self._free.put(worker)

    def query(self, question: Question, out: int) -> Callable[[], None]:
        """Have a query answered into a pipe; return what ends it. Waits for a free process."""
        worker = self._free.get()
        try:
            worker.ask(question, out)
        except OSError:  # it has ended by itself since its last query
            worker = self._replace(worker)
            worker.ask(question, out)
        ended = False
        lock = Lock()

        def end() -> None:
            nonlocal ended
            with lock:
                if not ended:
                    ended = True
                    self._free.put(worker if worker.is_free() else self._replace(worker))

        return end

    def _replace(self, worker: _Worker) -> _Worker:
        worker.end()
        with self._lock:
            self._workers.discard(worker)
            self.replaced += 1
            fresh = _Worker(self._source)
            self._workers.add(fresh)
        return fresh

    def close(self) -> None:
        """End all processes. No query may be under way."""
        with self._lock:
            for worker in self._workers:
                worker.end()
            self._workers.clear()
