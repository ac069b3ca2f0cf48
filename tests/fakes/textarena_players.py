"""Players for games of TextArena."""

import re


def first_free_cell(news: str) -> str:
    """Take the first cell of tic-tac-toe that is free."""
    free = news.rsplit("Available Moves", 1)[1]
    return f"[{re.findall(r'[0-8]', free)[0]}]"
