"""Calls between processes: answers, refusals, descriptors, death of the peer."""

import os
import socket

import anyio
import msgspec
import pytest

from gateway.channel import (
    CallTimeout,
    Channel,
    ChannelClosed,
    RemoteError,
    method,
    socket_pair,
)

HUGE = 2**64 - 1
"""The largest number that msgpack has."""


class Add(msgspec.Struct):
    left: int
    right: int


async def add(params, fds):
    return params.left + params.right


async def read_fd(params, fds):
    with os.fdopen(fds[0], "rb") as file:
        return file.read().decode()


async def refuse(params, fds):
    raise RemoteError("not_today", "come back tomorrow")


async def fail(params, fds):
    raise ValueError("broken")


async def hang(params, fds):
    await anyio.sleep(60)


METHODS = {
    "add": method(Add, add),
    "read_fd": method(type(None), read_fd),
    "refuse": method(type(None), refuse),
    "fail": method(type(None), fail),
    "hang": method(type(None), hang),
}


def with_channels(body):
    async def main():
        left_sock, right_sock = socket_pair()
        left = Channel(left_sock, METHODS, name="left")
        right = Channel(right_sock, METHODS, name="right")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(left.run)
            tasks.start_soon(right.run)
            with anyio.fail_after(10):
                await body(left, right)
            left.close()
            right.close()
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_sums_of_money_beyond_64_bits_are_asked_and_answered():
    async def body(left, right):
        for params in (Add(left=HUGE, right=HUGE), Add(left=HUGE + 1, right=-(HUGE**2))):
            found = await left.call("add", params, result_type=int, timeout_s=5)
            assert found == params.left + params.right

    with_channels(body)


def test_both_ends_answer_calls_at_the_same_time():
    async def body(left, right):
        results = {}

        async def one(channel, number):
            results[channel, number] = await channel.call(
                "add", Add(left=number, right=1), result_type=int, timeout_s=5
            )

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, left, number)
                tasks.start_soon(one, right, number)
        assert all(value == number + 1 for (_, number), value in results.items())
        assert len(results) == 100

    with_channels(body)


def test_a_large_frame_and_its_descriptor_arrive_whole():
    async def body(left, right):
        reader, writer = os.pipe()
        os.write(writer, b"through the pipe")
        os.close(writer)
        text = await left.call("read_fd", None, result_type=str, timeout_s=5, fds=[reader])
        os.close(reader)
        assert text == "through the pipe"
        huge = "x" * 5_000_000
        with pytest.raises(RemoteError) as caught:
            await left.call("add", huge, result_type=int, timeout_s=5)
        assert caught.value.code == "invalid_params"

    with_channels(body)


REFUSALS = {
    "a refusal keeps its code": ("refuse", None, "not_today"),
    "an unknown method is named": ("nothing", None, "unknown_method"),
    "wrong parameters are refused before the handler runs": ("add", {"left": 1}, "invalid_params"),
    "a handler that fails does not end the channel": ("fail", None, "internal_error"),
}


@pytest.mark.parametrize(("name", "params", "code"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refused_calls(name, params, code):
    async def body(left, right):
        with pytest.raises(RemoteError) as caught:
            await left.call(name, params, result_type=int, timeout_s=5)
        assert caught.value.code == code
        assert await left.call("add", Add(left=1, right=1), result_type=int, timeout_s=5) == 2

    with_channels(body)


def test_a_call_without_an_answer_times_out_and_the_channel_lives_on():
    async def body(left, right):
        with pytest.raises(CallTimeout):
            await left.call("hang", None, result_type=int, timeout_s=0.05)
        assert await left.call("add", Add(left=2, right=1), result_type=int, timeout_s=5) == 3

    with_channels(body)


def test_calls_in_flight_fail_when_the_peer_dies():
    async def body(left, right):
        async def kill():
            await anyio.sleep(0.05)
            right.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill)
            with pytest.raises(ChannelClosed):
                await left.call("hang", None, result_type=int, timeout_s=5)
        with pytest.raises(ChannelClosed):
            await left.call("add", Add(left=1, right=1), result_type=int, timeout_s=5)

    with_channels(body)


def test_a_frame_over_the_cap_ends_the_channel():
    async def main():
        left_sock, right_sock = socket_pair()
        left = Channel(left_sock, METHODS, name="left")
        right_sock.sendall((2**31).to_bytes(4, "little"))
        with anyio.fail_after(5):
            await left.run()
        assert left.is_closed
        right_sock.close()

    anyio.run(main)


def test_half_a_frame_then_death_ends_the_channel_quietly():
    async def main():
        left_sock, right_sock = socket_pair()
        left = Channel(left_sock, METHODS, name="left")
        right_sock.sendall(b"\x10\x00\x00\x00abc")
        right_sock.shutdown(socket.SHUT_RDWR)
        right_sock.close()
        with anyio.fail_after(5):
            await left.run()
        assert left.is_closed

    anyio.run(main)


UNREADABLE = {
    "nested without end": b"\x91" * 100_000 + b"\xc0",
    "a payload nested without end": b"\x95\xa4call\x01\xa3add\x00" + b"\x91" * 100_000 + b"\xc0",
    "no UTF-8": b"\x95\xa4\xff\xff\xff\xff\x01\xa3add\x00\xc0",
    "another shape": b"\x93\x01\x02\x03",
}


@pytest.mark.parametrize("frame", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_frame_that_cannot_be_read_ends_the_channel_and_nothing_else(frame):
    async def main():
        left_sock, right_sock = socket_pair()
        channel = Channel(left_sock, METHODS, name="left")
        right_sock.sendall(len(frame).to_bytes(4, "little") + frame)
        with anyio.fail_after(5):
            await channel.run()
        assert channel.is_closed
        right_sock.close()

    anyio.run(main)
