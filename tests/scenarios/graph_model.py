"""The reference model of the graph of runs: joins that wait by tokens. Plain Python, no database.

An *item* (what a manifest has to do) stands for a set of runs and carries the tokens of all of them; a token is the id
of a JoinState. Opening an item adds one to each of its JoinStates, ending it takes one from each: always both.
Transactions leave notes: a *due note* to a plain child, a *delta* to a JoinState. Notes are consumed later, in any
order (those of one child in their own order). The oracle keeps the sets of runs itself and reads no token or counter.

``BREAKS`` names rules that can be left out one at a time; ``life`` then ends in ``Broken``.
"""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

OK, DEAD, CANCELLED = "ok", "dead", "cancelled"
MATCH = {"success": {OK}, "failure": {DEAD}, "completion": {OK, DEAD, CANCELLED}}
END = -1  # the run itself: the join that everything leads to
BREAKS = (
    "merge",
    "gate",
    "twice",
    "disable",
    "near_now",
    "late",
    "short_final",
    "release_first",
    "request",
    "closed",
    "gone",
)


class Broken(AssertionError):
    """A rule did not hold."""


class Graph:
    """Manifests 0..n-1. ``parents[c]`` maps a parent to [condition, since]; a join has options."""

    def __init__(self, rng, size):
        while True:
            self.parents: dict[int, dict[int, list[Any]]] = {m: {} for m in range(size)}
            self.joins, self.gate, self.fan = {}, {}, {}
            heads = [0] + ([1] if size > 6 and rng.random() < 0.3 else [])
            family = {h: {h} for h in heads}
            for m in range(len(heads), size):
                head = rng.choice(heads)
                known = sorted(family[head])
                kind = rng.random()
                condition = rng.choices(["success", "failure", "completion"], [6, 1, 2])[0]
                if kind < 0.55 or len(known) < 3:
                    self.parents[m][rng.choice(known)] = [condition, 0]
                elif kind < 0.8:
                    for parent in rng.sample(known, min(len(known), rng.randint(2, 4))):
                        self.parents[m][parent] = [rng.choice(["success", "success", "completion"]), 0]
                    self.joins[m] = self.options(rng, at_least=rng.choice([None, None, 1, 0.5]))
                else:
                    self.gate[m] = rng.choice(known)
                    self.parents[m][self.gate[m]] = [rng.choice(["success", "completion"]), 0]
                    self.fan[m] = rng.choice(["siblings", "tree"])
                    self.joins[m] = self.options(rng, at_least=rng.choice([0, 0, 1, 1.0]))
                family[head].add(m)
            for j, kind in self.fan.items():
                for member in self.members(j, kind):
                    self.parents[j].setdefault(member, ["completion", 0])
            if self.is_acyclic():
                return

    @staticmethod
    def options(rng, at_least):
        return {
            "at_least": at_least,
            "eager": rng.random() < 0.15,
            "deadline": rng.random() < 0.15,
            "again": rng.random() < 0.3,
        }

    def members(self, j, kind):
        siblings = [c for c in self.children(self.gate[j]) if c != j and self.gate.get(c) != self.gate[j]]
        if kind == "siblings":
            return siblings
        below, stack = set(), siblings
        while stack:
            m = stack.pop()
            if m not in below and m != j:
                below.add(m)
                stack += self.children(m)
        return [m for m in below if not [c for c in self.children(m) if c in below]]

    def children(self, m):
        return [c for c in self.parents if m in self.parents[c]]

    def is_acyclic(self):
        left = {m: set(p) for m, p in self.parents.items()}
        while left:
            free = [m for m, p in left.items() if not p & set(left)]
            if not free:
                return False
            for m in free:
                del left[m]
        return True

    def near(self, m):
        """The joins that m leads to without passing through another; the run's end where there is none."""
        children = self.children(m)
        found = set() if children else {END}
        for c in children:
            found |= {c} if c in self.joins else self.near(c)
        return found

    def closure(self, m):
        found, stack = set(), [m]
        while stack:
            for j in self.near(stack.pop()):
                if j not in found:
                    found.add(j)
                    stack += [j] if j != END else []
        return found


@dataclass(eq=False)
class Item:
    manifest: int
    runs: set
    tokens: list
    opened: int
    phase: str = "queued"  # queued, active, retry; a due one is in Engine.due
    attempts: int = 0
    holds: bool = True
    # An operator asked for it, so that it may begin although its manifest is disabled.
    is_requested: bool = False


@dataclass(eq=False)
class JoinState:
    join: int
    run: int
    born: int
    tokens: list
    open: int = 0
    came: list = field(default_factory=list)  # the parents that arrived
    gated: int = 0
    fired: int = 0
    judged: int = 0  # arrivals that the last decision knew of
    outcome: str = ""
    alarm: bool = False  # its deadline has passed
    superseded: bool = False


@dataclass
class Engine:
    graph: Graph
    rng: random.Random
    broken: str = ""
    limit: int = 100  # MAX_OPEN_RUNS of a head
    tick: int = 0
    runs: int = 0
    heads: dict = field(default_factory=dict)
    cancelled: set = field(default_factory=set)
    states: dict = field(default_factory=dict)  # (join, run) -> JoinState
    deltas: dict = field(default_factory=lambda: defaultdict(list))
    notes: dict = field(default_factory=lambda: defaultdict(list))  # child -> Items in order
    open: dict = field(default_factory=dict)
    due: dict = field(default_factory=dict)
    letters: dict = field(default_factory=dict)
    disabled: set = field(default_factory=set)
    told: dict = field(default_factory=lambda: defaultdict(set))
    log: list = field(default_factory=list)  # the oracle's: (manifest, runs, outcome, opened)
    stats: Counter = field(default_factory=Counter)

    # -- tokens
    def tell(self, key, open=0, arrived=None, gated=0):
        self.deltas[key].append((open, arrived, gated))

    def take(self, m, runs):
        keys = self.keys(m, runs)
        if self.broken == "late":
            keys = [key for key in keys if not self.states[key].outcome]
        for key in keys:
            self.tell(key, open=1)
        return keys

    def keys(self, m, runs):
        """Where an item of m takes tokens; a join that came after a run's birth is replaced by the run's end."""
        return sorted({(j, r) if (j, r) in self.states else (END, r) for r in runs for j in self.graph.near(m)})

    def release(self, item):
        tokens = item.tokens
        if self.broken == "near_now":
            tokens = self.keys(item.manifest, item.runs)
        if self.broken == "late":
            tokens = [(j, r) for r in item.runs for j in self.graph.near(item.manifest)]
        for key in tokens if item.holds else ():
            self.tell(key, open=-1)
        item.holds = False

    # -- what people and schedules do
    def start(self, m):
        """A head: an occurrence or a trigger. Its run is born with the queue row, the JoinStates with it."""
        if m in self.open or m in self.due or m in self.letters or m in self.disabled or self.notes[m]:
            return
        mine = [
            run
            for run, head in self.heads.items()
            if head == m and not self.states[END, run].outcome and run not in self.cancelled
        ]
        undecided = [
            run for run in mine if not any(state.outcome for key, state in self.states.items() if key[1] == run)
        ]
        undecided = [run for run in undecided if run != min(mine)]  # never the oldest: it would be put off for ever
        if (
            len(mine) >= self.limit and undecided
        ):  # too many runs are open: the newest undecided one takes this passage in
            run = max(undecided)
            self.open[m] = Item(m, {run}, self.take(m, {run}), self.tick)
            self.stats["ridden"] += 1
            return
        self.runs += 1
        run = self.runs
        self.heads[run] = m
        for j in self.graph.closure(m):
            near = [] if j == END else [(k, run) for k in self.graph.near(j)]
            self.states[j, run] = JoinState(j, run, self.tick, near)
            for key in near:
                self.tell(key, open=1)
        self.open[m] = Item(m, {run}, self.take(m, {run}), self.tick)
        self.stats["runs"] += 1

    def disable(self, m):
        self.disabled.add(m)
        for item in (self.open.get(m), self.due.get(m)):
            is_kept = item and (item.is_requested or (self.broken == "disable" and item.phase == "retry"))
            if item and item.phase != "active" and not is_kept:
                self.release(item)

    def enable(self, m):
        self.disabled.discard(m)
        self.lift(m)

    def lift(self, m):
        """What stopped it is gone: what waits takes its tokens again, and goes on."""
        if m in self.disabled or m in self.letters:
            return
        if m not in self.open and m in self.due:
            self.open[m] = self.due.pop(m)
        for item in (self.open.get(m), self.due.get(m)):
            if item and not item.holds:
                self.hold(item)

    def hold(self, item):
        """It has a part again: it takes its tokens."""
        item.holds = True
        for key in item.tokens:
            self.tell(key, open=1)

    def request(self, m):
        """An operator asks for the item that waits: it may begin, although its manifest is disabled."""
        item = self.open[m]
        item.is_requested = True
        if not item.holds and self.broken != "request":
            self.hold(item)

    def cancel_run(self, run):
        self.cancelled.add(run)
        for m in list(self.graph.parents):
            for place in (self.open, self.due):
                item = place.get(m)
                if item and item.phase != "active" and item.runs <= self.cancelled:
                    del place[m]
                    self.release(item)
                    self.lift(m)
        for key in [key for key in self.states if key[1] == run]:
            self.tell(key)

    def retry_letter(self, m):
        item = self.letters.pop(m)
        runs = item.runs - self.cancelled
        if runs:
            self.open[m] = Item(m, set(runs), self.take(m, runs), self.tick, phase="retry", is_requested=True)
        self.lift(m)

    def acknowledge(self, m):
        del self.letters[m]
        self.lift(m)

    # -- what loops do
    def consume(self, child):
        """The manager takes a due note: under the child's lock it opens, moves, keeps for later, or has no part."""
        note = self.notes[child].pop(0)
        note.runs -= self.cancelled
        if not note.runs:
            self.release(note)
            return
        if child in self.disabled or child in self.letters:
            self.release(note)
        waiting = self.due.get(child)
        current = self.open.get(child)
        if waiting is None and current is not None and current.phase == "queued" and not current.is_requested:
            waiting = current
        if waiting is None:
            place = self.due if current is not None or child in self.letters else self.open
            place[child] = note
            return
        if self.broken == "merge":
            for j, r in waiting.tokens:
                self.states[j, r].superseded = True
            self.release(waiting)
            waiting.tokens, waiting.runs, waiting.holds = [], set(), note.holds
        if waiting.holds and not note.holds:
            self.release(waiting)
        if note.holds and not waiting.holds:
            self.release(note)
        waiting.runs |= note.runs
        waiting.tokens += note.tokens
        waiting.opened = min(waiting.opened, note.opened)
        self.stats["coalesced"] += 1

    def end(self, m, outcome):
        """record: one transaction; it locks m alone and leaves notes for others."""
        item = self.open[m]
        if outcome == DEAD and item.attempts < 1:
            item.attempts += 1
            item.phase = "retry"
            if m in self.disabled and not item.is_requested and self.broken != "disable":
                self.release(item)
            return
        if self.broken == "release_first":
            self.release(item)
            for key in item.tokens:
                self.fold(key)
        del self.open[m]
        self.log.append((m, frozenset(item.runs), outcome, item.opened))
        runs = item.runs - self.cancelled
        for c in self.graph.children(m):
            condition, since = self.graph.parents[c][m]
            if outcome not in MATCH[condition] or not runs:
                continue
            if c not in self.graph.joins:
                self.notes[c].append(Item(c, set(runs), self.take(c, runs), self.tick))
                continue
            for r in runs:
                state = self.states.get((c, r))
                is_new = not any(old in MATCH[condition] for old in self.told[m, r]) or self.broken == "twice"
                if state and is_new and since <= state.born:
                    is_gate = self.graph.gate.get(c) == m
                    self.tell((c, r), arrived=None if is_gate else m, gated=is_gate)
        for r in item.runs:
            self.told[m, r].add(outcome)
        self.release(item)
        if outcome == DEAD:
            self.letters[m] = item
            if m in self.due:
                self.release(self.due[m])
        self.lift(m)

    def fold(self, key):
        """The decider: under the JoinState's lock it adds up the deltas that are there and decides."""
        state = self.states[key]
        was_open = state.open > 0
        for open_, arrived, gated in self.deltas.pop(key, ()):
            state.open += open_
            if arrived is not None:
                state.came.append(arrived)
            state.gated += gated
        if state.open < 0:
            raise Broken(f"tokens of {key} are negative")
        if state.join == END:
            state.outcome = "" if state.open or self.is_busy(state.run) else "closed"
            return
        self.judge(state)
        if state.outcome and was_open is not (state.open > 0):
            self.tell((END, state.run))

    def is_busy(self, run):
        """Whether anything is open before a join: behind one that is decided already it holds no token of the end."""
        return self.broken != "closed" and any(
            state.open for (j, r), state in self.states.items() if r == run and j != END
        )

    def judge(self, state):
        options = self.graph.joins[state.join]
        is_quiet = state.open == 0
        is_enough = self.arrived(state) >= self.need(state) and (
            bool(state.gated) or state.join not in self.graph.gate or self.broken == "gate"
        )
        if state.run in self.cancelled:
            if not state.outcome:
                self.decide(state, "cancelled")
        elif not state.outcome:
            if is_quiet and state.superseded:
                self.decide(state, "merged")
            elif is_quiet or (options["eager"] and is_enough) or state.alarm:
                self.decide(state, "fired" if is_enough else "short", is_waiting=is_quiet and not state.alarm)
        elif (
            is_enough
            and (is_quiet or (options["eager"] and not state.fired))
            and len(state.came) + state.gated > state.judged
        ):
            is_first = not state.fired and self.broken != "short_final"
            if is_first or (options["again"] and state.fired):
                self.fire(state, self.take(state.join, {state.run}))
            state.judged = len(state.came) + state.gated

    def arrived(self, state):
        """The arrivals that count now: a parent that was taken out since then stands for no other."""
        edges = self.graph.parents[state.join]
        return (
            len(state.came)
            if self.broken == "gone"
            else sum(p in edges and edges[p][1] <= state.born for p in state.came)
        )

    def need(self, state):
        options = self.graph.joins[state.join]
        gate = self.graph.gate.get(state.join)
        edges = sum(1 for p, (_, since) in self.graph.parents[state.join].items() if p != gate and since <= state.born)
        at_least = options["at_least"]
        if at_least is None:
            return edges
        return -int(-(at_least * edges) // 1) if isinstance(at_least, float) else min(at_least, edges)

    def decide(self, state, outcome, is_waiting=False):
        if is_waiting:
            self.oracle_nothing_comes(state)
        state.outcome = outcome
        state.judged = len(state.came) + state.gated
        self.stats[outcome] += 1
        if outcome == "fired":
            self.fire(state, state.tokens, since=state.born)
            return
        for key in state.tokens:
            self.tell(key, open=-1)

    def fire(self, state, tokens, since=None):
        self.oracle_is_enough(state)
        state.fired += 1
        state.outcome = "fired"
        self.notes[state.join].append(
            Item(state.join, {state.run}, list(tokens), self.tick if since is None else since)
        )
        self.stats["firings"] += 1

    # -- the oracle: sets of runs, edges and what is open; no tokens, no counters
    def leads(self, m, j, run, tick):
        """Whether what m does in this run can come to j, through edges that were there and joins that are undecided."""
        for c in self.graph.children(m):
            if self.graph.parents[c][m][1] > tick:
                continue
            if c == j:
                return True
            beyond = self.states.get((c, run))
            if c not in self.graph.joins and self.leads(c, j, run, tick):
                return True
            # An edge that begins at a join counts from the next run on: its tokens are those of the run's birth.
            if c in self.graph.joins and beyond and not beyond.outcome and self.leads(c, j, run, beyond.born):
                return True
        return False

    def oracle_nothing_comes(self, state):
        waiting = [i for i in [*self.open.values(), *self.due.values()] if not self.is_left_out(i)]
        waiting += [note for notes in self.notes.values() for note in notes]
        for item in waiting:
            if state.run in item.runs and self.leads(item.manifest, state.join, state.run, item.opened):
                raise Broken(f"join {state.join} decided in run {state.run} while {item} is open")
        for (k, run), other in self.states.items():
            if (
                run == state.run
                and k not in (END, state.join)
                and not other.outcome
                and self.leads(k, state.join, run, other.born)
            ):
                raise Broken(f"join {state.join} decided in run {run} before join {k}")

    def is_left_out(self, item):
        m = item.manifest
        return (
            item.phase != "active"
            and not item.is_requested
            and (m in self.disabled or (m in self.letters and self.due.get(m) is item))
        )

    def oracle_tokens(self):
        """What is counted is what is held: by items, notes and undecided joins."""
        held = Counter[tuple[int, int]]()
        for item in [
            *self.open.values(),
            *self.due.values(),
            *(note for notes in self.notes.values() for note in notes),
        ]:
            held.update(item.tokens if item.holds else ())
        for state in self.states.values():
            held.update(() if state.outcome else state.tokens)
        for key, state in self.states.items():
            counted = state.open + sum(delta[0] for delta in self.deltas.get(key, ()))
            if counted != held[key]:
                raise Broken(f"{key}: {counted} tokens are counted, {held[key]} are held")

    def oracle_closed(self):
        """A run of which all deltas are added up is closed if, and only if, nothing with a part is open in it."""
        items = [*self.open.values(), *self.due.values(), *(note for notes in self.notes.values() for note in notes)]
        pending = {run for _, run in self.deltas}
        for run in set(self.heads) - pending:
            held = [item for item in items if item.holds and run in item.runs]
            if (self.states[END, run].outcome == "closed") is bool(held):
                raise Broken(f"run {run} is {self.states[END, run].outcome or 'open'} with {held}")

    def oracle_is_quiet(self):
        """Nothing is under way: each join of each run is decided, although letters wait and some are disabled."""
        for (j, run), state in self.states.items():
            if state.open:
                raise Broken(f"tokens of {(j, run)} leaked: {state.open}")
            if not state.outcome:
                raise Broken(f"join {j} in run {run} is never decided")

    def who_came(self, state):
        """The parents, over edges that are there now and are older than the run, with an outcome in it that matches."""
        return {
            p
            for p, (condition, since) in self.graph.parents[state.join].items()
            if since <= state.born
            and any(m == p and state.run in runs and outcome in MATCH[condition] for m, runs, outcome, _ in self.log)
        }

    def oracle_is_enough(self, state):
        """A join fires only after enough of the parents that it has now."""
        came = self.who_came(state) - {self.graph.gate.get(state.join)}
        if len(came) < self.need(state):
            raise Broken(f"join {state.join} fires in run {state.run}: it needs {self.need(state)}, {came} came")

    def oracle_all_is_over(self):
        """After everything has ended: each JoinState was decided rightly, and nothing is left."""
        covered = Counter((m, r) for m, runs, _, _ in self.log for r in runs)
        for (j, run), state in self.states.items():
            if j == END or run in self.cancelled:
                continue
            came = self.who_came(state)
            gate = self.graph.gate.get(j)
            if not self.edited and len(came - {gate}) != len(state.came):
                raise Broken(f"join {j} in run {run}: {state.came} counted, {came} came")
            should = len(came - {gate}) >= self.need(state) and (gate is None or gate in came)
            if not self.edited and should != bool(state.fired) and state.outcome != "merged":
                raise Broken(f"join {j} in run {run} is {state.outcome}, fired {state.fired}; came {came}")
            if state.fired > 1 and not self.graph.joins[j]["again"]:
                raise Broken(f"join {j} in run {run} fired {state.fired} times")
            if state.fired and not covered[j, run]:
                raise Broken(f"join {j} in run {run} fired and never ran")

    edited = False


def edit(engine, rng):
    """An edge is added or removed while runs are under way."""
    graph = engine.graph
    joins = [j for j in graph.joins if j not in graph.gate]
    if not joins:
        return
    j = rng.choice(joins)
    if rng.random() < 0.5 and len(graph.parents[j]) > 2:
        del graph.parents[j][rng.choice(list(graph.parents[j]))]
    else:
        p = rng.choice(list(graph.parents))
        if p != j and p not in graph.parents[j]:
            graph.parents[j][p] = ["success", engine.tick]
            if not graph.is_acyclic():
                del graph.parents[j][p]
    engine.edited = True


def choices(engine):
    """Every step that could come next, by kind."""
    e = engine
    active = [m for m, item in e.open.items() if item.phase == "active"]
    ready = [m for m, item in e.open.items() if item.phase != "active" and (item.is_requested or m not in e.disabled)]
    return {
        "consume": [c for c, notes in e.notes.items() if notes],
        "fold": list(e.deltas),
        "begin": ready,
        "end": active,
    }


def waiting_while_disabled(engine):
    """The disabled manifests with an item that waits, which an operator may ask for."""
    waiting = {m for m, item in engine.open.items() if item.phase != "active" and not item.is_requested}
    return sorted(waiting & engine.disabled)


def step(engine, kind, target, rng):
    if kind == "consume":
        engine.consume(target)
    elif kind == "fold":
        engine.fold(target)
    elif kind == "begin":
        engine.open[target].phase = "active"
    else:
        is_told = engine.open[target].runs <= engine.cancelled
        outcome = CANCELLED if is_told else rng.choices([OK, DEAD, CANCELLED], [8, 3, 1])[0]
        engine.end(target, outcome)


def life(rng, steps, broken=""):
    """One random graph and a random schedule; then everything ends, and the oracle looks."""
    engine = Engine(Graph(rng, rng.randint(3, rng.choice([6, 12, 20]))), rng, broken)
    engine.limit = rng.choice([1, 2, 4, 100])
    manifests = list(engine.graph.parents)
    heads = [m for m in manifests if not engine.graph.parents[m]]
    slow = {m for m in manifests if rng.random() < 0.3}
    weights = {
        "consume": rng.choice([1, 5]),
        "fold": rng.choice([1, 5]),
        "begin": 3,
        "end": 3,
        "start": rng.choice([1, 3]),
    }
    has_edits = rng.random() < 0.25
    for _ in range(steps):
        engine.tick += 1
        if engine.tick % 10 == 0 and not broken:
            engine.oracle_tokens()
        if engine.tick % 10 == 0 and broken in ("", "closed"):
            engine.oracle_closed()
        found = choices(engine)
        kind = rng.choices(list(weights), list(weights.values()))[0]
        luck = rng.random()
        if luck < 0.03:
            engine.disable(rng.choice(manifests))
        elif luck < 0.07 and engine.disabled:
            engine.enable(rng.choice(sorted(engine.disabled)))
        elif luck < 0.08 and engine.runs:
            engine.cancel_run(rng.randint(max(1, engine.runs - 5), engine.runs))
        elif luck < 0.12 and engine.letters:
            rng.choice([engine.retry_letter, engine.retry_letter, engine.acknowledge])(
                rng.choice(sorted(engine.letters))
            )
        elif luck < 0.125:
            engine.start(rng.choice(manifests))
        elif luck < 0.13 and engine.states:
            state = rng.choice(list(engine.states.values()))
            if state.join != END and engine.graph.joins[state.join]["deadline"]:
                state.alarm = True
                engine.fold((state.join, state.run))
        elif luck < 0.14 and has_edits:
            edit(engine, rng)
        elif 0.14 <= luck < 0.17 and (held := waiting_while_disabled(engine)):
            engine.request(rng.choice(held))
        elif kind == "start":
            engine.start(rng.choice(heads))
        elif found[kind]:
            target = rng.choice(sorted(found[kind]))
            if kind != "end" or target not in slow or rng.random() < 0.2:
                step(engine, kind, target, rng)
    while True:  # no new heads; then letters are resolved and manifests enabled, one by one
        engine.tick += 1
        possible = [(kind, target) for kind, targets in choices(engine).items() for target in sorted(targets)]
        if possible:
            kind, target = rng.choice(possible)
            step(engine, kind, target, rng)
            continue
        engine.oracle_is_quiet()
        if engine.disabled:
            engine.enable(rng.choice(sorted(engine.disabled)))
        elif engine.letters:
            rng.choice([engine.retry_letter, engine.acknowledge])(rng.choice(sorted(engine.letters)))
        else:
            break
    engine.oracle_all_is_over()
    return engine.stats


def starve(broken):
    """Head 0, members 1 and 2 in opposite phase, each twice as slow as the head; join 3 of both."""
    rng = random.Random(0)
    graph = Graph(rng, 3)
    graph.parents = {0: {}, 1: {0: ["success", 0]}, 2: {0: ["success", 0]}, 3: {1: ["success", 0], 2: ["success", 0]}}
    graph.joins, graph.gate = {3: {"at_least": None, "eager": False, "deadline": False, "again": False}}, {}
    engine = Engine(graph, rng, broken)

    def settle():
        while True:
            found = choices(engine)
            if found["consume"]:
                engine.consume(found["consume"][0])
            elif found["fold"]:
                engine.fold(found["fold"][0])
            elif 3 in found["begin"]:
                engine.open[3].phase = "active"
            elif 3 in found["end"]:
                engine.end(3, OK)
            else:
                return

    for period in range(1000):
        member = 1 + period % 2  # one of the two ends and begins anew just after the head
        engine.tick += 1
        engine.start(0)
        engine.open[0].phase = "active"
        engine.end(0, OK)
        settle()
        if member in engine.open:
            if engine.open[member].phase == "active":
                engine.end(member, OK)
                settle()
            if member in engine.open:
                engine.open[member].phase = "active"
        settle()
    joined = sum(1 for m, *_ in engine.log if m == 3)
    longest = max(len(runs) for _, runs, _, _ in engine.log)
    return engine.runs, joined, longest


def overlap(seed, broken="", limit=100):
    """A head that never waits, chains of members of any durations in its periods, one join: how far it falls behind."""
    rng = random.Random(seed)
    chains = [[rng.randint(1, 6) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(2, 4))]
    graph = Graph(rng, 3)
    graph.parents, graph.gate, lasts, takes = {0: {}}, {}, [], {}
    for chain in chains:
        last = 0
        for duration in chain:
            m = len(graph.parents)
            graph.parents[m], takes[m], last = {last: ["success", 0]}, duration, m
        lasts.append(last)
    join = len(graph.parents)
    graph.parents[join] = {last: ["success", 0] for last in lasts}
    graph.joins = {join: {"at_least": None, "eager": False, "deadline": False, "again": False}}
    takes[join] = 1
    engine, ends, lag = Engine(graph, rng, broken, limit), dict[int, int](), 0
    for now in range(400):
        engine.tick = now
        engine.start(0)
        engine.open[0].phase = "active"
        engine.end(0, OK)
        for m in [m for m, at in ends.items() if at <= now]:
            del ends[m]
            engine.end(m, OK)
        for _ in range(2 * join):
            found = choices(engine)
            for child in found["consume"]:
                engine.consume(child)
            for key in list(engine.deltas):
                engine.fold(key)
        for m in choices(engine)["begin"]:
            engine.open[m].phase = "active"
            ends[m] = now + takes[m]
        undecided = [run for (j, run), state in engine.states.items() if j == join and not state.outcome]
        lag = max(lag, engine.runs - min(undecided, default=engine.runs))
    limit = 2 * max(map(sum, chains)) + 2 * join
    if lag > limit and not broken:
        raise Broken(f"life {seed}: the join fell {lag} runs behind, durations {chains}")
    return sum(1 for m, *_ in engine.log if m == join)
