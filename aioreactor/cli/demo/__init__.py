"""``aioreactor demo``: real check-outs over a file of orders, against a shop that lives in memory.

`checkout` is the workflow, written as one would write one's own. `systems` are the outside systems it works on:
stock, card gateway, carrier, loyalty points. `orders` reads the order file, `play` runs the orders, here or handed off,
`audit` compares the systems' books with the outcomes, `report` and `report_workers` draw all of it, `command` is the
command.

The workers are processes (`crew`) that are started as a person would start theirs, with `checkout` and `app` as their
modules. They reach the shop over a socket (`link`), as one reaches outside systems. An order may say that its worker is
killed: that happens when the shop has done something for it, in place of the answer.
"""
