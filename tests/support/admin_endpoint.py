"""An admin socket that answers as a running gateway does, on a thread of its own."""

import threading
from contextlib import contextmanager

import anyio

from gateway.process import admin_socket


@contextmanager
def admin_endpoint(folder, methods):
    """Answer `methods` on the admin socket of a spool directory."""
    is_listening, is_over = threading.Event(), threading.Event()

    async def serve():
        async with (
            anyio.create_task_group() as tasks,
            admin_socket.listening(folder, methods, tasks=tasks),
        ):
            is_listening.set()
            while not is_over.is_set():
                await anyio.sleep(0.01)

    thread = threading.Thread(target=anyio.run, args=(serve,))
    thread.start()
    try:
        assert is_listening.wait(10)
        yield
    finally:
        is_over.set()
        thread.join(10)
