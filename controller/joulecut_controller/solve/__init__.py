"""The frontier solver: least energy within a deadline, with a certificate.

`problem` holds the values asked and answered, `solver` is the door (`solve`, `frontier`,
`Solver`), `schedule` prices a choice (`makespan`, `baseline`), `opinion` checks what others
found (`check`). Inside: `circulation` relaxes, `rounding` and `gpu` find real clocks. Import
from those modules: this one stays empty, so that whoever needs the values alone does not
load a solver. Pure.
"""
