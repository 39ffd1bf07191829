"""The engine process: links in, steps on a thread of its own, messages out.

Started as `python -m local_engine.server --control-fd N`, where N is one end of a socket pair whose
other end the supervisor holds. This thread moves bytes, the step thread owns the core, a third one
renders and encodes prompts. No prompt, token or logit is ever logged, core dumps are off, and the
process ends with its supervisor.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import assert_never, cast

import anyio
import msgspec

from local_engine.content_guard import ContentGuard
from local_engine.control_channel import ControlChannel
from local_engine.engine import Engine, log_fault
from local_engine.errors import EngineError, EngineGone, ProtocolError
from local_engine.frontend import Frontend
from local_engine.loading import LoadedModel, load_model
from local_engine.log_lines import set_up_logging
from local_engine.prefix_cache import ChainHasher
from local_engine.process_guard import guard_process
from local_engine.protocol import (
    AddLink,
    Configure,
    Drain,
    EngineConfig,
    EngineStats,
    Fatal,
    MessageReader,
    ModelCard,
    Ping,
    Pong,
    Ready,
    SupervisorMessage,
)
from local_engine.request_desk import RequestDesk, Service
from local_engine.scheduler import SchedulerLimits
from local_engine.step_loop import StepLoop

_log = logging.getLogger(__name__)
_CONFIGURE_TIMEOUT_S = 30.0
_SIGTERM_DRAIN_S = 10.0
_LAST_STEP_S = 10.0
_FLUSH_S = 1.0
_SHUTTING_DOWN = "the engine is shutting down"

LoadModel = Callable[[EngineConfig], LoadedModel]


class EngineServer:
    """Serves one model to any number of links.

    Args:
        control: This end of the control socket.
        config: What the supervisor asked for.
        load: Gives the model; runs on the step thread.
        clock_ns: Monotonic clock in nanoseconds.
        random_seed: A new 64-bit seed.
    """

    def __init__(
        self,
        control: socket.socket,
        config: EngineConfig,
        *,
        load: LoadModel,
        clock_ns: Callable[[], int],
        random_seed: Callable[[], int],
    ) -> None:
        self._config = config
        self._load = load
        self._clock_ns = clock_ns
        self._random_seed = random_seed
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[int] = self._loop.create_future()
        self._new_sockets: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._steps: StepLoop | None = None
        self._is_draining = False
        # A union is a type to msgspec, which the stubs cannot say.
        union = cast("type[SupervisorMessage]", SupervisorMessage)
        self._control = ControlChannel(
            control, union, on_message=self._on_control, on_end=self._on_control_end
        )
        self._desk = RequestDesk(
            self._loop,
            requests_max=2 * config.queued_requests_max + config.max_num_seqs,
            clock_ns=clock_ns,
            on_empty=self._finish_if_drained,
        )
        self._step_thread = threading.Thread(target=self._run_steps, name="steps", daemon=True)

    async def run(self) -> int:
        """Serve until drained, orphaned or broken.

        Returns:
            The exit status.
        """
        self._loop.add_signal_handler(signal.SIGTERM, self._drain, _SIGTERM_DRAIN_S)
        # The terminal's interrupt goes to the whole group; ending is the supervisor's decision.
        self._loop.add_signal_handler(signal.SIGINT, _ignore)
        self._control.start(self._loop)
        self._step_thread.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._connect_links)
            await self._finished
            tasks.cancel_scope.cancel()
        await self._close()
        return self._finished.result()

    def join(self) -> bool:
        """Wait a bounded time for the step in progress; False when it did not end."""
        self._step_thread.join(_LAST_STEP_S)
        return not self._step_thread.is_alive()

    async def _connect_links(self) -> None:
        while True:
            sock = await self._new_sockets.get()
            await self._loop.create_unix_connection(self._desk.new_link, sock=sock)

    async def _close(self) -> None:
        if self._steps is not None:
            self._steps.stop()
        self._desk.close()
        with anyio.move_on_after(_FLUSH_S):
            await self._desk.wait_closed()
        self._control.close()
        while not self._new_sockets.empty():
            self._new_sockets.get_nowait().close()

    def _on_control(self, message: SupervisorMessage) -> None:
        match message:
            case AddLink():
                sock = socket.socket(fileno=self._control.take_descriptor())
                sock.setblocking(False)
                self._new_sockets.put_nowait(sock)
            case Ping():
                self._control.send(Pong(stats=self._stats()))
            case Drain(deadline_s=deadline_s):
                self._drain(deadline_s)
            case Configure():
                raise ProtocolError("the engine is configured already")
            case _:
                assert_never(message)

    def _on_control_end(self, reason: str) -> None:
        _log.warning("the supervisor is gone: %s", reason)
        self._finish(0)

    def _stats(self) -> EngineStats:
        if self._steps is None:
            return EngineStats(state="starting")
        stats = self._steps.stats()
        return msgspec.structs.replace(stats, state="draining") if self._is_draining else stats

    def _drain(self, deadline_s: float) -> None:
        if not self._is_draining:
            self._is_draining = True
            _log.info("draining, %d requests in flight", len(self._desk))
            self._desk.refuse_new(_SHUTTING_DOWN)
            self._loop.call_later(max(0.0, deadline_s), self._cut)
            self._finish_if_drained()

    def _cut(self) -> None:
        """The drain's deadline: abort what is left, and do not wait for a step that hangs."""
        self._desk.cut(error=_SHUTTING_DOWN)
        self._loop.call_later(_LAST_STEP_S, self._finish, 1)

    def _finish_if_drained(self) -> None:
        if self._is_draining and not len(self._desk):
            self._finish(0)

    def _finish(self, status: int) -> None:
        if not self._finished.done():
            self._finished.set_result(status)

    def _run_steps(self) -> None:
        """The step thread, from loading the model to the end."""
        try:
            service = self._build()
            self._call_loop(self._on_ready, service)
            service.steps.run()
        except EngineError as fault:
            self._call_loop(self._on_fatal, Fatal(message=str(fault), is_permanent=True))
        except Exception as fault:  # noqa: BLE001 - the boundary of the thread; logged right below
            log_fault("the step thread broke", fault, n_sequences=0)
            message = f"the engine broke: {type(fault).__name__}"
            self._call_loop(self._on_fatal, Fatal(message=message))

    def _call_loop(self, function: Callable[..., None], argument: object) -> None:
        # The loop may be gone already; then the process is about to end and nobody is to be told.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)

    def _build(self) -> Service:
        config = self._config
        model = self._load(config)
        runner = model.runner
        identity = f"{model.file_digest}\n{model.dtype}\n{model.device}".encode()
        engine = Engine(
            runner,
            token_bytes=model.tokenizer.token_bytes,
            limits=_limits_of(config),
            hasher=ChainHasher(config.namespace_key, model_identity=identity),
            clock_ns=self._clock_ns,
            itl_target_s=config.itl_target_s,
        )
        card = _card_of(config, model)
        frontend = Frontend(
            tokenizer=model.tokenizer,
            guard=ContentGuard(model.tokenizer.control_texts),
            render_chat=model.render_chat,
            context_window=card.context_window,
            random_seed=self._random_seed,
        )
        steps = StepLoop(
            engine,
            deliver=self._desk.deliver,
            is_cancelled=self._desk.is_cancelled,
            clock_ns=self._clock_ns,
        )
        return Service(card=card, frontend=frontend, steps=steps)

    def _on_ready(self, service: Service) -> None:
        self._steps = service.steps
        if not self._is_draining:
            self._desk.open(service)
        with contextlib.suppress(EngineGone):  # the supervisor's end is noticed by the reader
            self._control.send(Ready(card=service.card))

    def _on_fatal(self, fatal: Fatal) -> None:
        _log.info("%s", fatal.message)  # whoever started this process makes it an error
        with contextlib.suppress(EngineGone):
            self._control.send(fatal)
        self._finish(1)


class _Arguments(argparse.Namespace):
    control_fd: int
    log_level: int


def main(arguments: Sequence[str] | None = None, *, load: LoadModel = load_model) -> int:
    """Run the engine process.

    Args:
        arguments: Of the command line, None takes the process's own.
        load: Gives the model for a configuration.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m local_engine.server", description=__doc__)
    parser.add_argument("--control-fd", type=int, required=True, metavar="N")
    parser.add_argument("--log-level", type=int, default=logging.INFO, metavar="L")
    given = parser.parse_args(arguments, namespace=_Arguments())
    set_up_logging("engine", level=given.log_level, log_format="json")
    guard_process()
    control = socket.socket(fileno=given.control_fd)
    config = _read_config(control)
    set_up_logging(f"engine-{config.model_id}", level=given.log_level, log_format=config.log_format)

    async def serve() -> tuple[int, bool]:
        server = EngineServer(
            control,
            config,
            load=load,
            clock_ns=time.monotonic_ns,
            random_seed=lambda: secrets.randbits(64),
        )
        status = await server.run()
        return status, server.join()

    status, has_ended = asyncio.run(serve())
    if not has_ended:
        # A thread inside a kernel cannot be asked to end, and would hold up the interpreter.
        os._exit(status or 1)
    return status


def _read_config(control: socket.socket) -> EngineConfig:
    """Wait for the supervisor's first message.

    Raises:
        ProtocolError: it does not come, or is another.
    """
    union = cast("type[SupervisorMessage]", SupervisorMessage)
    reader = MessageReader(union)
    control.settimeout(_CONFIGURE_TIMEOUT_S)
    while True:
        # One byte more than a frame could swallow a descriptor of the next, so read no further.
        data = control.recv(reader.missing_bytes)
        if not data:
            raise ProtocolError("the supervisor left before it configured the engine")
        for message in reader.feed(data):
            if isinstance(message, Configure):
                return message.config
            raise ProtocolError("the supervisor's first message must be the configuration")


def _limits_of(config: EngineConfig) -> SchedulerLimits:
    return SchedulerLimits(
        running_max=config.max_num_seqs,
        step_tokens_max=max(config.max_step_tokens, config.max_num_seqs),
        queued_requests_max=config.queued_requests_max,
        queued_tokens_max=config.queued_tokens_max,
        is_caching=config.is_caching,
    )


def _card_of(config: EngineConfig, model: LoadedModel) -> ModelCard:
    runner = model.runner
    usable_blocks = runner.n_blocks - 1
    window = min(model.context_window, usable_blocks * runner.block_size)
    return ModelCard(
        model_id=config.model_id,
        file_digest=model.file_digest,
        context_window=min(window, config.max_model_len or window),
        vocab_size=model.tokenizer.vocab_size,
        device=model.device,
        dtype=model.dtype,
        block_size=runner.block_size,
        n_blocks=usable_blocks,
        running_max=config.max_num_seqs,
        has_chat_template=model.render_chat is not None,
    )


def _ignore() -> None:
    """Do nothing; a handler that is set replaces the default."""


if __name__ == "__main__":
    sys.exit(main())
