"""A loopback HTTP proxy between OpenCode and the model server: it answers itself, or passes on.

What passes is passed on byte for byte as it arrives; a copy is read on the side, so that a trial knows lanes, tool
calls, tool results, token counts and the server's timings without looking at the screen. llama-server sends `timings`
in the last event of every stream without being asked (build 11549), so a request's body is changed only where a slot
is leased or a turn is guided.

OpenCode repeats a request that got a 5xx for ever. Whatever a trial cannot recover from is therefore also recorded as
a `Fault`, and `Proxy.changed` is notified, so that a trial ends with a message instead of a timeout.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from opencode_harness.cassette import CassetteMismatch, Recorder, Tape
from opencode_harness.errors import ProxyError
from opencode_harness.guided import GuidedStream, guided_body
from opencode_harness.journal import Exchange, Fault, Ledger, ToolResult, tool_results_of
from opencode_harness.lanes import LaneBook
from opencode_harness.proxy_answers import OwnAnswer, PassedOn, http_error, turn_answer
from opencode_harness.proxy_faults import ProxyFault
from opencode_harness.proxy_http import ProxyServer
from opencode_harness.scenario import Limits
from opencode_harness.script import Script
from opencode_harness.turns import Turn
from opencode_harness.upstream import Upstream

__all__ = ["Proxy"]

_TITLE = Turn(text="Harness session")


class Proxy:
    """The proxy of one trial: a context manager that listens on a free port of 127.0.0.1.

    Title requests are always answered by the proxy itself. With `turns`, each conversation gets its own in order, and
    every other chat request is a fault; with a `tape`, chat requests are answered from it; without either they go
    upstream. Everything else goes upstream where there is one. All properties may be read from any thread at any
    time, also after `stop()`.

    Args:
        upstream: The server's address, such as `http://127.0.0.1:8080` (a trailing `/v1` is ignored), or None.
        turns: The model's turns, or empty when something else answers.
        guided: Whether the upstream is made to say the turns.
        tape: The cassette that answers, or None.
        recorder: Receives every answer of the upstream, or None.
        faults: What goes wrong on purpose.
        limits: Where the trial is ended.
        slots: The server's slots that this trial may use: the main agent gets the first, sub-agents the others.
        journal: File for one JSON object per line, at the start and end of each exchange; appended to.
        upstream_api_key: Sent upstream as bearer key in place of the client's; never recorded.
        connect_timeout_s: For reaching the upstream.
        read_timeout_s: Longest silence of the upstream, the processing of a prompt included.
        max_request_bytes: Larger requests are refused with 413.

    Raises:
        ProxyError: The upstream's address is not an HTTP address.
    """

    def __init__(
        self,
        *,
        upstream: str | None,
        turns: Sequence[Turn] = (),
        guided: bool = False,
        tape: Tape | None = None,
        recorder: Recorder | None = None,
        faults: Sequence[ProxyFault] = (),
        limits: Limits | None = None,
        slots: Sequence[int] = (),
        journal: Path | None = None,
        upstream_api_key: str | None = None,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 600.0,
        max_request_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.upstream = (
            None if upstream is None else Upstream(upstream, upstream_api_key, connect_timeout_s, read_timeout_s)
        )
        self.max_request_bytes = max_request_bytes
        self.lanes = LaneBook()
        self.ledger = Ledger(journal, secret=upstream_api_key)
        self.recorder = recorder
        self._script = Script(turns)
        self._guided = guided
        self._tape = tape
        self._faults = {fault.at: fault for fault in faults}
        self._limits = limits or Limits()
        self._slots = tuple(slots)
        self._main_requests = 0
        self._server: ProxyServer | None = None
        self._base_url = ""

    def __enter__(self) -> Proxy:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen.

        Raises:
            ProxyError: The journal cannot be opened, or the proxy was started before.
        """
        if self._base_url:
            raise ProxyError("this proxy was started before", hint="make a new one for each trial")
        self.ledger.open()
        self._server = ProxyServer(self)
        self._base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._server.start()

    def stop(self) -> None:
        """Cut off open requests, free the port, end all threads, close the journal. Further calls do nothing."""
        server, self._server = self._server, None
        if self._tape is not None:
            self._tape.stop()
        if server is not None:
            server.stop()
            self.ledger.close()

    @property
    def base_url(self) -> str:
        """Address for OpenCode's provider, ending in `/v1`; empty before `start()`."""
        return self._base_url

    @property
    def changed(self) -> threading.Condition:
        """Notified when an exchange starts or ends and when a fault is recorded."""
        return self.ledger.changed

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults in the order of their recording."""
        with self.changed:
            return tuple(self.ledger.faults)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Chat exchanges in the order of arrival, open ones included."""
        with self.changed:
            return tuple(self.ledger.exchanges.values())

    @property
    def turns_left(self) -> int:
        """Scripted turns, or recorded answers, that were not asked for yet."""
        with self.changed:
            return self._tape.left if self._tape is not None else self._script.left

    @property
    def open_requests(self) -> int:
        """Requests that are being answered now."""
        with self.changed:
            return self.ledger.open_requests

    @property
    def now_s(self) -> float:
        """Seconds since `start()`: the clock of all exchanges."""
        return self.ledger.now_s()

    @property
    def silence_s(self) -> float:
        """How long the quietest of the open chat requests has been without a token."""
        return self.ledger.silence_s()

    def tool_results(self) -> tuple[ToolResult, ...]:
        """What tools answered: each result that a main request carried, once, in the order of appearance."""
        found: dict[tuple[str | None, str], ToolResult] = {}
        for exchange in self.exchanges:
            if exchange.lane == "main":
                for result in tool_results_of(exchange.request):
                    found.setdefault((exchange.session_id, result.call_id), result)
        return tuple(found.values())

    def enforce_limits(self, stall_s: float) -> None:
        """End the trial when its time since the first chat request is up, or a model has fallen silent.

        To be called now and then: nothing else watches the clock.

        Args:
            stall_s: The longest that an open request may be without a token.
        """
        with self.changed:
            first = self.ledger.exchanges.get(1)
            if first is None or any(fault.kind in ("limit", "model-stall") for fault in self.ledger.faults):
                return
            limit_s = self._limits.wall_s
            spent_s, silent_s = self.ledger.now_s() - first.started_s, self.ledger.silence_s()
            if limit_s is not None and spent_s > limit_s:
                self.ledger.fault("limit", f"wall: {spent_s:.1f} s since the first request, the limit is {limit_s:g} s")
            elif silent_s > stall_s:
                message = f"the model sent no token for {silent_s:.1f} s (timeout 'stall' is {stall_s:g} s)"
                self.ledger.fault("model-stall", message)

    def tokens_left(self) -> int | None:
        """How many tokens the models may still generate; None for any number."""
        limit = self._limits.completion_tokens
        return None if limit is None else limit - sum(map(_generated, self.exchanges))

    def fault_of(self, exchange: Exchange) -> ProxyFault | None:
        """What goes wrong on purpose with a chat request that has just begun; counts main requests, so ask once."""
        if exchange.lane != "main":
            return None
        with self.changed:
            self._main_requests += 1
            return self._faults.get(self._main_requests)

    def answer(self, exchange: Exchange, body: bytes, fault: ProxyFault | None) -> OwnAnswer | PassedOn:
        """What a chat request is answered with.

        Args:
            exchange: The exchange that has just begun.
            body: The request's body as it came.
            fault: What goes wrong with it on purpose, or None.
        """
        if exchange.lane == "title":
            return turn_answer(_TITLE, exchange.request, exchange.number, int(time.time()))
        with self.changed:
            reached = self._limit_reached()
            if reached:
                return self._refuse(exchange, "limit", reached)
            if fault is not None and fault.kind == "status":
                return http_error(fault)
            if fault is not None and fault.kind == "hang-up":
                return OwnAnswer("scripted", 0, "", (), fault)
            if self._tape is not None:
                return self._from_tape(self._tape, exchange, fault)
            if self._script.length:
                return self._from_script(exchange, fault)
            if self.upstream is None:
                return self._refuse(exchange, "no-upstream", "there is neither a turn nor a server")
            return PassedOn(self._leased(exchange, body), fault=fault)

    def _limit_reached(self) -> str:
        limits, left = self._limits, self.tokens_left()
        if limits.turns is not None and self._main_requests > limits.turns:
            return f"turns: the agent asks for turn {self._main_requests}, the limit is {limits.turns}"
        return _tokens_spent(limits) if left is not None and left <= 0 else ""

    def out_of_tokens(self) -> None:
        """The models have generated all that they may: the trial is over."""
        self.ledger.fault("limit", _tokens_spent(self._limits))

    def _from_tape(self, tape: Tape, exchange: Exchange, fault: ProxyFault | None) -> OwnAnswer:
        try:
            recorded = tape.next_for(exchange.lane, exchange.request, keep=_keeps(fault))
        except CassetteMismatch as mismatch:
            return self._refuse(exchange, mismatch.kind, str(mismatch))
        return OwnAnswer("cassette", recorded.status, recorded.content_type, tape.pieces(recorded), fault)

    def _from_script(self, exchange: Exchange, fault: ProxyFault | None) -> OwnAnswer | PassedOn:
        turn = self._script.next_for(exchange.lane, keep=_keeps(fault))
        if turn is None:
            if exchange.lane in self._script.lanes:
                return self._refuse(
                    exchange, "turns-exhausted", f"no turn left: all {self._script.length} turns were served"
                )
            message = f"no turn is written for the {exchange.lane} lane, which asks for one"
            return self._refuse(exchange, "unscripted-request", message)
        if self._guided and self.upstream is not None:
            body = self._leased(exchange, guided_body(exchange.request, turn))
            return PassedOn(body, GuidedStream(turn, exchange.number).feed, fault)
        return turn_answer(turn, exchange.request, exchange.number, int(time.time()), fault)

    def _leased(self, exchange: Exchange, body: bytes) -> bytes:
        """The body with the slot that the conversation has leased, if any (`id_slot`, tools/server/README.md)."""
        mine = self._slots[:1] if exchange.lane == "main" else self._slots[1:2]
        return json.dumps({**json.loads(body), "id_slot": mine[0]}).encode("ascii") if mine else body

    def _refuse(self, exchange: Exchange, kind: str, message: str) -> OwnAnswer:
        # Not an HTTP error: OpenCode would repeat the request for ever. A last text makes the mistake visible.
        self.ledger.fault(kind, message)
        return turn_answer(Turn(text=f"[harness] {message}"), exchange.request, exchange.number, int(time.time()))


def _tokens_spent(limits: Limits) -> str:
    return f"completion_tokens: the models have generated all {limits.completion_tokens} that they may"


def _keeps(fault: ProxyFault | None) -> bool:
    """Whether the request will be repeated, so that its answer is still needed."""
    return fault is not None and fault.kind in {"cut", "error-event"}


def _generated(exchange: Exchange) -> int:
    counted = (exchange.usage or {}).get("completion_tokens") or (exchange.timings or {}).get("predicted_n")
    return counted if isinstance(counted, int) and exchange.lane != "title" else 0
