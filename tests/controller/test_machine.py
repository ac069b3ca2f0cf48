"""Laws 3 to 6 and 16 at each moment of a run, whatever its calls do and in which order."""

import pytest
from hypothesis import settings

from tests.controller.machine import ControllerMachine

ControllerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
TestController = ControllerMachine.TestCase
pytestmark = pytest.mark.timeout(900)  # a failure takes a minute or more to become small
