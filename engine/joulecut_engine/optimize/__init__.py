"""The solver: least energy within a deadline, with a certificate.

`problem` holds the values asked and answered, `solver` is the door (`solve`, `frontier`,
`Solver`, `prepared`), `schedule` prices a choice (`makespan`, `baseline`), `opinion` checks
what others found (`check`). Inside, a clock per operation: `network` lays the problem out,
`interior` and `relaxation` answer one deadline, `pivot` and `sweep` many, `face` and
`rounding` find real clocks; one clock for many: `groups`, `tied` and `bounds`. `compiled`
alone knows the compiler. Import from those modules: this one stays empty, so that whoever
needs the values alone does not load a solver. Pure.
"""
