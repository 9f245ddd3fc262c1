"""The messages of a channel as the streams that the MCP SDK reads and writes, in its versions 1.x and 2.x.

They need no task of their own, and may be closed by another task than the one that made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCMessage
from pydantic import TypeAdapter, ValidationError

if TYPE_CHECKING:
    from ._channel import Channel

# A model in one version of the SDK, and a union of models in the other.
_MESSAGE: TypeAdapter[Any] = TypeAdapter(JSONRPCMessage)


class ReadStream(ObjectReceiveStream[Any]):
    """Messages of the endpoint; one that the SDK cannot read as the error."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def receive(self) -> Any:
        try:
            message = await self._channel.messages.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None
        try:
            return SessionMessage(_MESSAGE.validate_python(message))
        except ValidationError as error:
            return error

    async def aclose(self) -> None:
        self._channel.close()


class WriteStream(ObjectSendStream[Any]):
    """Messages for the endpoint."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def send(self, item: Any) -> None:
        if not self._channel.is_open:
            raise anyio.ClosedResourceError
        self._channel.send(item.message.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def aclose(self) -> None:
        pass
