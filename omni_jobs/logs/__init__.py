"""The log lines of all processes: their form, what stands in each, and what may stand in none.

``setup`` configures a process. ``secrets`` and ``texts`` say what is taken out, ``line_filter`` takes it out, and
``formats`` writes the line, as text or as JSON. ``records`` has lines with fields, such as those of transitions.
"""
