"""What the user wrote: reactors, steps, wiring, composite nodes, policies. No I/O, no event loop.

`ports` holds the two seams through which a definition reaches what stands below it: the compiler that turns a
class into a plan when it is created, and the launcher behind ``Reactor.run()``.
"""
