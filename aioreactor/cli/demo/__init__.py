"""``aioreactor demo``: real check-outs over a file of orders, against a shop that lives in memory.

`checkout` is the workflow, written as one would write one's own. `systems` are the outside systems it works on:
stock, card gateway, carrier, loyalty points. `orders` reads the order file, `play` runs the orders, `audit` compares
the systems' books with the outcomes, `report` draws all of it, `command` is the command.
"""
