"""Writes the table of docs/templates.md. See scripts/templates.

    templates.py PAGE LINES VERSION SOURCES     LINES is what `contextpilot-llama template --json` has printed
"""

import json
import sys

BEGIN, END = "<!-- table of scripts/templates -->\n", "<!-- end of the table -->\n"
HEAD = ["template", "plain", "tools", "back", "out", "several", "day", "again, back/out", "tried, and helps"]
SHORT = {
    "reasoning_left_out_at_user_message": "u",
    "reasoning_left_out_at_tool_result": "t",
    "system_text_moved": "system",
    "tools_moved": "tools",
    "date": "date",
    "date_without_system_message": "date, if no system",
    "white_space_trimmed": "trims",
    "call_spelled_otherwise": "call",
    "think_block_not_in_history": "think",
    "generation_prompt_not_in_history": "begin",
    "content_left_out": "content",
    "call_left_out": "no call",
    "other": "other",
}


def cell(row, name):
    outcome = row[name]
    if outcome is None:
        return "refused" if name in row["refused"] else "–"
    # The date is what the column is about.
    kinds = ", ".join(SHORT[kind] for kind in outcome["kinds"])
    kinds = f" ({kinds})" if kinds else ""
    if outcome["differ"] == 0:
        return ("ok, thinking off" if "kwargs" in outcome else "ok") + kinds
    return f"{outcome['differ']}/{outcome['requests']} {100 * outcome['again']:.1f} %{kinds}"


def helps(row):
    def one(help):
        what = help["what"].replace("chat_template_kwargs ", "")
        return f"{what}: {100 * help['from']:.1f} → {100 * help['to']:.1f} %"

    return "; ".join(one(help) for help in row["helps"])


def line(row):
    cells = [row["template"] + (" †" if row["reasoning"] == "never_rendered" else "")]
    names = ["plain", "tools", "reasoning_back", "reasoning_out", "parallel_calls", "another_day"]
    cells += [cell(row, name) for name in names]
    both = [row[name] for name in ("reasoning_back", "reasoning_out")]
    cells.append("/".join(f"{one['again_characters']:.0f}" for one in both) if all(both) else "")
    cells.append(helps(row))
    return "| " + " | ".join(cells) + " |\n"


def main(page, lines, version, sources):
    with open(lines) as file:
        rows = [json.loads(one) for one in file]
    table = f"llama-server {version}, templates of {sources}: {len(rows)}.\n\n"
    table += "| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|\n"
    table += "".join(line(row) for row in sorted(rows, key=lambda row: row["template"].lower()))
    with open(page) as file:
        text = file.read()
    before, rest = text.split(BEGIN)
    with open(page, "w") as file:
        file.write(before + BEGIN + table + END + rest.split(END)[1])


main(*sys.argv[1:])
