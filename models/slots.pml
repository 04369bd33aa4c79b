/* A tool's slots: taken in the transaction that dispatches, freed in the one that records its result, or once the
   attempt's deadline has passed. A worker may die or lose its lease while its request is still being served; the call is
   then run again. -DCALLS=n (at most 3), -DWORKERS=n, -DTRIES=n. Mirrors store/slots.py, store/calls.py, sweeper.py. */
#include "switches.h"
#define LIMIT 2
#define NONE 9
#define FREE(s) (holder[s] == NONE || over[s])
#define CAN(c) (c < CALLS && !running[c] && !done[c] && tries[c] < TRIES)
#define MINE (running[call] && fence[call] == mine)
#define KEPT(s) (holder[s] == call && since[s] == mine)      /* the slot is still this attempt's */
#define OURS(s) (holder[s] == call && (since[s] == mine || BROKEN_FREED_BY_HOLDER))
byte holder[LIMIT] = NONE, since[LIMIT];    /* the call that holds the slot, and under which fence it took it */
bool over[LIMIT];                           /* that attempt's deadline (and grace) has passed: the slot may be taken */
bool running[3], lapsed[3], done[3];
byte fence[3], tries[3], inflight;          /* inflight: requests that the downstream serves now; what the limit limits */
inline free(s) { if :: OURS(s) -> holder[s] = NONE; over[s] = false; since[s] = 0 :: else fi }
active [WORKERS] proctype Worker() { byte call, mine, slot;
again: atomic { call = 0; mine = 0; slot = 0 }
end: do
  :: atomic { (CAN(0) || CAN(1) || CAN(2)) && (FREE(0) || FREE(1)) ->           /* picks a call and a slot */
       if :: CAN(0) -> call = 0 :: CAN(1) -> call = 1 :: CAN(2) -> call = 2 fi;
       if :: FREE(0) -> slot = 0 :: FREE(1) -> slot = 1 fi }
     atomic { if                                                                /* takes both, or neither */
       :: CAN(call) && (FREE(slot) || BROKEN_TAKEN_WITHOUT_LOCK) ->
            running[call] = true; lapsed[call] = false; fence[call]++; tries[call]++; mine = fence[call];
            holder[slot] = call; since[slot] = mine; over[slot] = false
       :: else -> goto again fi }
     if :: true                                                                 /* dies before it sends */
        :: atomic { inflight++; assert(inflight <= LIMIT) }
           if :: BROKEN_SHORT_LEASE -> atomic { if :: KEPT(slot) -> over[slot] = true :: else fi } :: true fi;
           atomic { inflight--;                            /* answered, or given up at the deadline, its worker dead or not */
             if :: true :: MINE -> done[call] = true; running[call] = false; free(0); free(1); goto again
                :: MINE && tries[call] < TRIES -> running[call] = false; free(0); free(1); goto again   /* tried again */
             fi } fi;
     atomic { if :: KEPT(slot) && !BROKEN_NO_DEADLINE -> over[slot] = true :: else fi; goto again }   /* died: in time */
  od }
inline lost(c) { running[c] = false; done[c] = (tries[c] == TRIES);             /* its slot stays taken */
  if :: BROKEN_FREED_BY_LEASE && holder[0] == c -> holder[0] = NONE :: BROKEN_FREED_BY_LEASE && holder[1] == c ->
        holder[1] = NONE :: else fi }
active proctype Sweeper() { end: do
  :: atomic { running[0] && !lapsed[0] -> lapsed[0] = true } :: atomic { running[0] && lapsed[0] -> lost(0) }
  :: atomic { running[1] && !lapsed[1] -> lapsed[1] = true } :: atomic { running[1] && lapsed[1] -> lost(1) }
  :: atomic { running[2] && !lapsed[2] -> lapsed[2] = true } :: atomic { running[2] && lapsed[2] -> lost(2) } od }
active proctype Quiet() { timeout -> assert(FREE(0) && FREE(1)); assert(!CAN(0) && !CAN(1) && !CAN(2)) }
