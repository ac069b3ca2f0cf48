"""Tool calls in a turn: found in token ids, read by the format's rules, never repaired.

`ToolCallParser` and `parse_turn` do it for the formats of real models (`FORMATS`), and
`parse_tool_call` for the calls `name(text)` of character models. `detect_format` recognises a
format by its chat template.
"""

from .character import parse_tool_call as parse_tool_call
from .detect import detect_format as detect_format
from .format import Bare as Bare
from .format import Edge as Edge
from .format import Format as Format
from .format import Header as Header
from .format import Mode as Mode
from .format import Span as Span
from .formats import FORMATS as FORMATS
from .machine import CallEvent as CallEvent
from .machine import Event as Event
from .machine import TextEvent as TextEvent
from .parser import ParsedTurn as ParsedTurn
from .parser import ToolCallParser as ToolCallParser
from .parser import parse_turn as parse_turn
from .reading import CallFault as CallFault
from .reading import CallLimits as CallLimits
from .reading import CallText as CallText
from .reading import Context as Context
from .reading import Draft as Draft
