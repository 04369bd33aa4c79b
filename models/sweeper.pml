/* Rows, hints and the sweeper: the queue loses and doubles hints; a publisher sends none where enough wait; processes die
   between commit and publish, and workers die or lose their lease. Every due row is served in the end, once, and no two
   workers own it under one fence. -DROWS=n (at most 3), -DWORKERS=n, -DFAULTS=n, -DSWEEPERS=n. Mirrors orchestrator/tasks.py, hints.py,
   sweeper.py and the claims of store/. With -DFAULTS=0 -DBROKEN_NO_SWEEPER it must hold too: hints alone do. */
#include "switches.h"
#define ENOUGH 2                               /* waiting hints beyond which none is published */
#define DUE(r) (st[r] == READY)
#define MINE (BROKEN_RECORD_WITHOUT_FENCE || (st[row] == RUNNING && fence[row] == mine))
#define STALE BROKEN_STALE_SWEEPER
mtype = { ABSENT, READY, RUNNING, DONE };
mtype st[3] = ABSENT;
byte fence[3], results[3], faults;
int used[3];                                   /* one bit for each fence under which the row was owned */
bool lapsed[3], orphan[3];                     /* its lease has run out; its owner is dead */
chan hints = [ENOUGH] of { byte };             /* what it holds is what the broker has not lost */
inline publish(r) { atomic { if :: len(hints) < ENOUGH -> hints!r :: else fi } }
inline pick(r) { if :: DUE(r) || BROKEN_HINTED_ROW_ONLY :: else -> if
  :: DUE(0) -> r = 0 :: DUE(1) -> r = 1 :: DUE(2) -> r = 2 :: else fi fi }
active [ROWS] proctype Submitter() { byte me;
  me = _pid; st[me] = READY;                                            /* the row commits, due at once */
  if :: atomic { faults < FAULTS -> faults++ } :: publish(me) fi; me = 0 }        /* died, or the broker hung */
active [WORKERS] proctype Worker() { byte row, mine;
idle: atomic { row = 0; mine = 0 }
end: do
  :: hints?row -> 
more: atomic { mine = 0; pick(row); if :: !DUE(row) -> goto idle :: else fi }      /* looks for a due row ... */
     atomic { if :: !DUE(row) && !BROKEN_CLAIM_WITHOUT_CAS -> goto idle            /* ... and claims it, if it still is */
       :: else -> st[row] = RUNNING; lapsed[row] = false; orphan[row] = false;
            fence[row] = (BROKEN_FENCE_REUSED -> 1 : fence[row] + 1); mine = fence[row];
            assert(!(used[row] & (1 << mine))); used[row] = used[row] | (1 << mine) fi }
work: if
     :: atomic { faults < FAULTS -> faults++; orphan[row] = (MINE -> true : orphan[row]); goto idle }       /* dies */
     :: atomic { MINE && lapsed[row] -> lapsed[row] = false; goto work }           /* renewed just in time */
     :: atomic { if :: MINE -> assert(st[row] == RUNNING); results[row]++; assert(results[row] == 1); st[row] = DONE
                    :: else fi; goto more }                                        /* goes on until nothing is due */
     fi
  od }
active proctype Broker() { byte h; end: do
  :: atomic { faults < FAULTS && nempty(hints) -> faults++; hints?h; h = 0 }                       /* loses one */
  :: atomic { faults < FAULTS && len(hints) == 1 -> faults++; hints?<h>; hints!h; h = 0 }          /* doubles one */
  :: atomic { faults < FAULTS && len(hints) == 2 -> faults++; hints?h; hints!h; h = 0 } od }       /* reorders */
#define TIME(r) atomic { st[r] == RUNNING && !lapsed[r] && (orphan[r] || faults < FAULTS) -> lapsed[r] = true; \
                         faults = (orphan[r] -> faults : faults + 1) }
#define LOST(r) st[r] == RUNNING && lapsed[r] && !BROKEN_LOST_NOT_REPAIRED && !BROKEN_NO_SWEEPER -> \
                atomic { if :: STALE || (st[r] == RUNNING && lapsed[r]) -> st[r] = READY :: else fi }; publish(r)
#define AGAIN(r) atomic { DUE(r) && len(hints) < ENOUGH && !BROKEN_NO_SWEEPER -> hints!r }
active [SWEEPERS] proctype Sweeper() { end: do
  :: TIME(0) :: TIME(1) :: TIME(2) :: LOST(0) :: LOST(1) :: LOST(2) :: AGAIN(0) :: AGAIN(1) :: AGAIN(2) od }
active proctype Quiet() { byte r; timeout; do :: r < ROWS -> assert(st[r] == DONE && results[r] == 1); r++ :: else -> break od }
