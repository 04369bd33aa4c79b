/* One write: start record, send, answer, lease loss, reaper, reconciliation, withdrawal. A worker may die or pause at
   any step; a request may be lost or arrive at any later time. KEY: the downstream enforces the idempotency key.
   -DWORKERS=n workers, -DTRIES=n sends at most. Mirrors store/actions.py, orchestrator/dispatch.py and sweeper.py. */
#include "switches.h"
#define DEAD goto idle    /* the process forgets everything; another one takes its place */
#define FINAL (st == SUCCEEDED || st == FAILED || st == REJECTED)
#define HELD (BROKEN_NO_STARTED -> READY : STARTED)
#define OURS (BROKEN_NO_FENCE || (st == HELD && fence == mine))
#define KNOWN (KEY && memory != NOTHING)
#define MAY_REPEAT (KEY || BROKEN_RESEND_ON_ABSENCE)
mtype = { READY, STARTED, UNKNOWN, SUCCEEDED, FAILED, REJECTED, NOTHING, APPLIED, REFUSED, WAITING };
mtype st = READY, memory = NOTHING;     /* the action's row; what the downstream knows of the key */
mtype answer[FENCES + 1] = WAITING;     /* by fence: what came back for that attempt */
byte fence, attempts, maybe, effects;   /* maybe: earlier attempts without proof that nothing was sent */
bool lapsed, ended;                     /* the lease has run out; the operation has ended */
chan net = [TRIES] of { byte };         /* requests under way, by fence */
inline become(to) {
  assert(!FINAL);                                                    /* what is settled stays settled */
  assert(to != SUCCEEDED || effects == 1);                           /* I5 */
  assert((to != FAILED && to != REJECTED) || effects == 0);
  st = to }
inline record(to) { if :: OURS -> become(to) :: else fi; mine = 0; goto idle }
active [WORKERS] proctype Worker() { byte mine; mtype seen;
idle: atomic { mine = 0; seen = 0 }
end: do
  :: atomic { st == READY && !ended && attempts < TRIES && fence < FENCES &&         /* the start's transaction */
       (!BROKEN_NO_STARTED || fence == 0 || lapsed) -> lapsed = false; fence++; attempts++; mine = fence; st = HELD }
     if :: DEAD :: lapsed || true -> goto unsent :: !lapsed fi;      /* lease.held(), then connect */
     net!mine;                                                       /* paused before this: the zombie's late request */
     if :: DEAD :: atomic { answer[mine] == APPLIED -> record(SUCCEEDED) }
        :: atomic { answer[mine] == REFUSED -> record(FAILED) }
        :: atomic { true -> if :: OURS -> maybe++ :: else fi; if :: BROKEN_LOST_IS_FAILED -> record(FAILED)
                            :: else -> record(UNKNOWN) fi }          /* timeout, reset, 5xx, garbage */
     fi;
unsent: atomic { if :: attempts < TRIES -> record(READY)             /* the retry owner tries again or gives up */
                    :: maybe == 0 || BROKEN_UNSENT_FORGETS -> record(FAILED)
                    :: else -> record(UNKNOWN) fi }
  :: atomic { st == UNKNOWN && fence < FENCES -> fence++; mine = fence }             /* reconcile: claim, ask */
     if :: DEAD :: seen = memory fi;
     atomic { if :: st == UNKNOWN && fence == mine && seen == APPLIED -> become(SUCCEEDED)
                 :: st == UNKNOWN && fence == mine && seen == REFUSED -> become(FAILED)
                 :: st == UNKNOWN && fence == mine && seen == NOTHING && MAY_REPEAT && !ended -> st = READY
                 :: else fi; goto idle }                             /* absent proves nothing: ask again, or a person */
  od }
active proctype Downstream() { byte from; end: do
  :: atomic { net?from -> if :: true                                 /* lost on the way */
       :: KNOWN -> answer[from] = memory                             /* the same answer again */
       :: !KNOWN -> memory = REFUSED; answer[from] = REFUSED
       :: !KNOWN -> memory = APPLIED; answer[from] = APPLIED; effects++;
            assert(effects == 1 && attempts > 0);                    /* I1, I4 */
            assert(st != FAILED && st != REJECTED) fi; from = 0 }    /* I5, zombies included */ od }
active proctype Sweeper() { bool stale; end: do
  :: atomic { st == HELD && !lapsed -> lapsed = true }               /* time passes */
  :: atomic { st == STARTED && lapsed && !BROKEN_NO_REAPER -> stale = BROKEN_STALE_REAPER }
     atomic { if :: stale || (st == STARTED && lapsed) -> maybe++; if :: BROKEN_REAPER_RESENDS -> become(READY)
              :: else -> become(UNKNOWN) fi :: else fi; stale = false } od }
active proctype Caller() { atomic { ended = true; if                 /* cancel, deadline */
  :: st == READY && (maybe == 0 || BROKEN_WITHDRAW_FORGETS) -> become(REJECTED)
  :: st == READY && maybe > 0 && !BROKEN_WITHDRAW_FORGETS -> become(UNKNOWN) :: else fi } }
active proctype Quiet() { timeout -> assert(st != STARTED) }         /* I3 */
