/* The state all processes share, and how they take turns at it.
 *
 * Every client of NVML loads its own copy of the library, so what a lock or a counter is must
 * live outside all of them: in one file, mapped by each. `layout.py` mirrors these structures;
 * `bytes` in the header lets it refuse a file of another layout.
 *
 * A holder may be killed anywhere. The turn is a flock, which the kernel drops then; and what
 * must be changed together (`motion`) is written beside what is in force and then switched to.
 */
#ifndef FAKE_NVML_STATE_H
#define FAKE_NVML_STATE_H

#include <stdint.h>

#define STATE_MAGIC 0x4d564e4c554f4aULL /* "JOULNVM" */
#define STATE_VERSION 5
#define GPUS_MAX 16
#define CLOCKS_MAX 256 /* B300 lists 256 */
#define MEMORY_CLOCKS_MAX 4
#define HOOKS_MAX 32
#define WRITES_MAX 1024 /* a ring; `writes_total` tells when it has wrapped */
#define CALLS_MAX 1024  /* a ring, like the one above */
#define EVENTS_MAX 64   /* a ring: who does not wait for them in time loses the oldest */
#define CLIENTS_MAX 256
#define PROCESSES_MAX 16
#define SAMPLES_MAX 128
#define REASONS 9 /* bits of the clock event reasons that have a counter */
#define PROFILE_WORDS 8
#define NAME_MAX_BYTES 96
#define LATE_MAX 4          /* writes of one GPU that the driver has yet to carry out */
#define COMMAND_BYTES 160

struct clock_lock { /* 0, 0: not locked */
    uint32_t min_mhz;
    uint32_t max_mhz;
};

struct sample {
    uint64_t at_ns;
    uint32_t power_mw;
    uint32_t clock_mhz;
    uint32_t busy_percent;
    uint32_t memory_mhz;
};

struct motion { /* what time does to a GPU; changed as a whole */
    uint64_t updated_ns;
    double energy_mj;         /* exact */
    double energy_visible_mj; /* as of the last whole 100 ms */
    double power_average_w;
    double temperature_celsius;
    uint32_t too_warm; /* software thermal slowdown is on */
    uint32_t too_hot;  /* the hardware's is */
    uint64_t reason_ns[REASONS];
    double nvlink_tx_bytes;
    double nvlink_rx_bytes;
    double pcie_tx_bytes;
    double pcie_rx_bytes;
    uint64_t samples_total;
};

struct gpu_process {
    uint32_t pid; /* 0: unused */
    uint32_t reserved;
    uint64_t used_bytes;
};

struct foreign_writer { /* somebody who puts back what he wants */
    uint64_t every_ns;  /* 0: nobody */
    uint64_t next_ns;
    int64_t times;      /* writes left; -1: without end */
    uint32_t clock_mhz; /* 0: leaves clocks alone */
    uint32_t limit_mw;  /* 0: leaves the limit alone */
};

struct late_write { /* a setter call that the driver carries out later, whatever became of its caller */
    uint64_t due_ns; /* 0: unused */
    uint32_t pid;
    uint32_t kind;
    uint32_t arguments[2];
};

#define LATE_LOCK 1
#define LATE_RESET 2
#define LATE_LIMIT 3

struct gpu_state {
    /* Identity and tables: written once, by layout.py. */
    char name[NAME_MAX_BYTES];
    char uuid[NAME_MAX_BYTES];
    char serial[32];
    uint32_t architecture;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t clock_count;
    uint32_t clocks_mhz[CLOCKS_MAX]; /* ascending */
    uint32_t memory_clock_count;
    uint32_t memory_clocks_mhz[MEMORY_CLOCKS_MAX]; /* ascending */
    uint32_t idle_clock_mhz;
    uint32_t limit_min_mw;
    uint32_t limit_max_mw;
    uint32_t limit_default_mw;
    uint64_t memory_total_bytes;
    double idle_w;
    double static_w; /* P0 */
    double dynamic_w_per_ghz;
    double knee_ghz;
    double volts_per_ghz; /* relative to the voltage below the knee */
    double celsius_per_w; /* above ambient, once settled */
    uint64_t set_latency_ns;
    uint64_t counter_step_ns; /* how often the energy counter moves */
    double module_w;          /* drawn beside the GPU by the rest of its module (Grace) */
    uint32_t has_module;      /* power of the module answers, as scope 1 of a field */
    uint32_t counts_module;   /* the energy counter is the module's */
    uint32_t nvlink_count;
    uint32_t profiles_supported; /* bit per workload power profile; 0: the card has none */

    /* Set by tests and by clients. */
    double load; /* 0 idle .. 1 busy */
    uint64_t ecc_errors[2][2];     /* corrected, uncorrected; volatile, aggregate */
    uint64_t nvlink_errors[4]; /* CRC of flits, CRC of data, replays, recoveries */
    uint64_t memory_used_bytes;
    uint32_t mig_enabled;
    uint32_t mig_pending;
    uint32_t persistence;
    uint32_t limit_mw;
    uint32_t limit_out_of_band_mw; /* 0: none; lowers the enforced limit */
    uint32_t clock_ceiling_mhz;    /* 0: none; lowers the clock without a reason */
    uint32_t application_mhz;      /* 0: default */
    uint32_t power_brake;
    uint32_t unreached[CLOCKS_MAX / 32]; /* a lie: bit per listed clock that a lock does not reach */
    uint32_t ecc_changes;         /* its mode is another one from the next reset on */
    struct clock_lock lock;        /* as last written */
    struct clock_lock lock_before; /* in force until lock_at_ns */
    uint64_t lock_at_ns;
    struct clock_lock memory_lock; /* recorded, without effect */
    double ambient_celsius;
    double nvlink_tx_bytes_per_s;
    double nvlink_rx_bytes_per_s;
    double pcie_tx_bytes_per_s;
    double pcie_rx_bytes_per_s;
    uint32_t profiles_requested;
    uint32_t profiles_enforced;
    uint32_t lost;
    uint32_t attached; /* counts returns; a handle from before is void */
    struct foreign_writer foreign;
    struct late_write late[LATE_MAX];
    struct gpu_process processes[PROCESSES_MAX];

    /* Brought up to date by each call: motion[motion_now] is in force. */
    uint32_t motion_now;
    uint32_t reserved;
    struct motion motion[2];
    struct sample samples[SAMPLES_MAX];
};

struct hook { /* a rule that makes calls fail, stall or both */
    char function[NAME_MAX_BYTES]; /* a C symbol, "field:186", or "*"; empty: unused */
    int32_t gpu;                   /* -1: every GPU, and calls that name none */
    int32_t code;
    int64_t skip;       /* calls to let through first */
    int64_t count;      /* calls to hit after those; -1: all */
    int64_t delay_ms;   /* before the answer; -1: hangs for as long as this rule is here */
    int64_t late_ms;    /* a setter: what was asked is done that much later; -1: at once */
    uint32_t lies;      /* a setter: "success", and nothing was done */
    uint32_t reserved;
    double probability; /* of hitting a call that is due */
    uint64_t random;    /* state of its own generator */
    uint64_t hits;
    uint64_t id; /* never used twice, so that a hung call knows its rule is gone */
};

struct write_record {
    uint64_t at_ns;
    uint32_t pid;
    int32_t gpu;
    char function[NAME_MAX_BYTES];
    uint32_t arguments[2];
    int32_t code;
    uint64_t begun_ns; /* when it was called; it may have hung until at_ns */
    uint32_t done; /* whether the GPU was changed by it; a late write has a second record then */
    uint32_t reserved;
    char command[COMMAND_BYTES]; /* of the caller, with blanks between the arguments */
};

struct call_record {
    uint64_t at_ns;
    uint32_t pid;
    int32_t gpu;
    char function[NAME_MAX_BYTES];
    int32_t code;
    uint32_t reserved;
};

struct event {
    uint64_t type;
    uint64_t data;
    int32_t gpu;
    uint32_t reserved;
};

struct client {
    uint32_t pid; /* 0: unused */
    uint32_t reserved;
    uint64_t started_ticks; /* tells a process from a later one of the same number */
};

struct state {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t gpu_count;
    uint32_t permission;      /* 0 everybody may write, 1 nobody, 2 who has CAP_SYS_ADMIN */
    int64_t clock_skew_ns;    /* added to the time; tests advance it instead of waiting */
    int64_t epoch_offset_ns;  /* from the monotonic clock to that of the timestamps */
    uint32_t driver_loaded;
    uint32_t driver_loads;    /* a client knows the load it was opened under, and no other */
    uint32_t driver_version;  /* a library knows one version of the driver, and no other */
    uint32_t renumbers;       /* a lie: each session finds the UUIDs at other indices */
    uint32_t sessions;
    uint64_t writes_total;
    uint64_t calls_total;
    uint64_t events_total;
    uint64_t hooks_total;
    struct hook hooks[HOOKS_MAX];
    struct client clients[CLIENTS_MAX];
    struct event events[EVENTS_MAX];
    struct gpu_state gpus[GPUS_MAX];
    struct write_record writes[WRITES_MAX];
    struct call_record calls[CALLS_MAX];
};

/* Maps the file named by JOULECUT_FAKE_NVML_STATE. 0, or -1 where there is no such state. */
int state_open(void);

/* Takes the state, or NULL before state_open. Never held across a delay. */
struct state *state_take(void);
void state_give(void);

uint64_t state_now_ns(const struct state *state);

/* Who uses the driver. */
int clients_enter(struct state *state, uint32_t pid); /* 0, or -1: there are too many */
void clients_leave(struct state *state, uint32_t pid);
void clients_bury(struct state *state); /* forgets those that have died */

void record_write(struct state *state, uint64_t at_ns, uint32_t pid, int gpu,
                  const char *function, uint32_t first, uint32_t second, int code, int done);

/* Brings one GPU up to `now_ns`: what foreign writers did meanwhile, then `physics_advance`. */
void fake_catch_up_gpu(struct state *state, uint32_t index, uint64_t now_ns);

/* The same for the whole node, its clients included: what Python calls before it looks. */
void fake_catch_up(struct state *state, uint64_t now_ns);

/* Brings clocks, energy and temperature of a GPU up to `now_ns`. */
void physics_advance(struct gpu_state *gpu, uint64_t now_ns);
const struct motion *physics_motion(const struct gpu_state *gpu);
uint32_t physics_clock_mhz(const struct gpu_state *gpu, uint64_t now_ns);
double physics_power_w(const struct gpu_state *gpu, uint64_t now_ns);
uint64_t physics_reasons(const struct gpu_state *gpu, uint64_t now_ns);
uint32_t physics_limit_mw(const struct gpu_state *gpu); /* the enforced limit */
void physics_lock(struct gpu_state *gpu, struct clock_lock lock, uint64_t now_ns);
void physics_forget(struct gpu_state *gpu, uint64_t now_ns); /* settings back to default */

#define SLOWDOWN_CELSIUS 85.0 /* assumed: software lowers clocks to stay at it */
#define HOT_CELSIUS 92.0      /* assumed: hardware goes to the lowest clock */
#define SHUTDOWN_CELSIUS 97.0 /* assumed */

#define REASON_IDLE 0
#define REASON_APPLICATION_CLOCKS 1
#define REASON_POWER_CAP 2
#define REASON_HW_SLOWDOWN 3
#define REASON_SW_THERMAL 5
#define REASON_HW_THERMAL 6
#define REASON_POWER_BRAKE 7

#endif
