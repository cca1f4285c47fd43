"""The ``aioreactor`` command.

One module per command (`graph`, `check`, `worker`, `sweep`, ``demo/``). What they share: `targets` imports what a
command line names, `stores` opens the stored runs, `output` talks to the terminal, `render_trace` turns an outcome into
a tree and `draw_trace` draws that with rich. Nothing here is imported by the rest of the library; click and rich come
with ``aioreactor[cli]``.
"""
