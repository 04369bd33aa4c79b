/* One approval: people vote, the clock expires it, the caller cancels or corrects the request, workers start the action,
   die, and start it again. A start consumes the approval in its own transaction. NEEDED of -DPEOPLE=n must agree;
   -DWORKERS=n, -DTRIES=n. Mirrors store/approvals.py, orchestrator/commands.py, the objections of dispatch.py. */
#include "switches.h"
#define NEEDED 2
#define OPEN (approval == PENDING || approval == APPROVED)
#define people(v) ((v & 1) + ((v >> 1) & 1) + ((v >> 2) & 1) + ((v >> 3) & 1))
#define NEW_VOTE (BROKEN_SAME_PERSON_TWICE || !(votes & (1 << _pid)))
#define MINE (st == STARTED && fence == mine)
#define OBJECTION ((ended && !BROKEN_CANCEL_UNCHECKED) || (digest != 1 && !BROKEN_ANY_DIGEST) || !ALLOWED)
#define ALLOWED ((approval == CONSUMED && (attempts > 0 || paid)) || BROKEN_NOT_REQUIRED || \
                 (approval == APPROVED && (!expired || BROKEN_EXPIRY_UNCHECKED)))
mtype = { WAITING, READY, STARTED, UNKNOWN, SUCCEEDED, REJECTED, PENDING, APPROVED, DENIED, EXPIRED, REVOKED, CONSUMED };
mtype st = WAITING, approval = PENDING;
byte votes, yeses, attempts, fence;       /* votes: one bit for each person who approved; yeses: how many were counted */
byte digest = 1;                          /* of the action as its row says now; the approval is bound to 1 */
bool expired, ended, no, maybe, lapsed;   /* no: a refusal was accepted; maybe: an attempt may have arrived */
inline block(why) { approval = (OPEN -> why : approval);
  if :: st == WAITING || (st == READY && !maybe) -> st = REJECTED :: st == READY && maybe -> st = UNKNOWN :: else fi }
active [PEOPLE] proctype Person() { bool yes, seen; byte times;
end: do :: times < 2 -> times++; seen = (approval == PENDING); if :: yes = true :: yes = false fi;    /* looks at it */
     atomic { if :: (BROKEN_DECIDE_WITHOUT_CAS && seen) || (approval == PENDING && !expired) -> if
            :: !yes -> no = true; block(DENIED)
            :: yes && NEW_VOTE -> votes = votes | (1 << _pid); yeses++;
                 if :: yeses >= NEEDED -> approval = APPROVED; st = (st == WAITING -> READY : st) :: else fi
            :: else fi
       :: else fi; yes = false; seen = false } od }
active [WORKERS] proctype Worker() { byte mine; bool paid;
again: atomic { mine = 0; paid = false }
end: do
  :: atomic { BROKEN_CONSUME_FIRST && !paid && st == READY && approval == APPROVED && !expired ->
       approval = CONSUMED; paid = true }; if :: goto again :: true fi           /* commits, and may die here */
  :: atomic { st == READY && attempts < TRIES -> if                              /* the start's transaction */
       :: OBJECTION -> block(REVOKED); goto again
       :: else -> assert(people(votes) >= NEEDED && !no && digest == 1 && !ended);   /* what was agreed, and stands */
            assert(attempts > 0 || approval == CONSUMED || !expired);                /* in time */
            approval = (BROKEN_CONSUME_LATER -> approval : CONSUMED);
            st = STARTED; attempts++; fence++; mine = fence; lapsed = false fi }
     if :: goto again                                                            /* died, before or after the send */
        :: atomic { st = (MINE && attempts < TRIES -> READY : (MINE -> UNKNOWN : st)); goto again }     /* not sent */
        :: atomic { st = (MINE -> SUCCEEDED : st); approval = (BROKEN_CONSUME_LATER -> CONSUMED : approval); goto again }
        :: atomic { maybe = maybe || MINE; st = (MINE -> UNKNOWN : st); goto again } fi
  od }
active proctype Sweeper() { end: do
  :: atomic { st == STARTED && !lapsed -> lapsed = true }
  :: atomic { st == STARTED && lapsed -> st = UNKNOWN; maybe = true }
  :: atomic { st == UNKNOWN && attempts < TRIES && !ended -> st = READY }        /* absent, and the key is enforced */
  :: atomic { expired && (OPEN || (BROKEN_EXPIRES_USED && approval == CONSUMED)) ->
       assert(attempts == 0); block(EXPIRED); approval = EXPIRED }               /* nobody decided or started in time */
  od }
active proctype Clock() { expired = true }
active proctype Caller() { if :: atomic { ended = true; block(REVOKED) } :: digest = 2 :: true fi }   /* cancel, amend */
active proctype Quiet() { timeout -> assert(st != STARTED && st != READY || attempts == TRIES);
  assert((approval == CONSUMED) == (attempts > 0)); assert(!expired || !OPEN) }
