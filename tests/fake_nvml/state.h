/* The state all processes share, and how they take turns at it.
 *
 * Every client of NVML loads its own copy of the library, so what a lock or a counter is must
 * live outside all of them: in one file, mapped by each. `layout.py` mirrors these structures;
 * `bytes` in the header lets it refuse a file of another layout.
 */
#ifndef FAKE_NVML_STATE_H
#define FAKE_NVML_STATE_H

#include <stdint.h>

#define STATE_MAGIC 0x4d564e4c554f4aULL /* "JOULNVM" */
#define STATE_VERSION 1
#define GPUS_MAX 16
#define CLOCKS_MAX 256
#define MEMORY_CLOCKS_MAX 4
#define HOOKS_MAX 32
#define WRITES_MAX 1024 /* a ring; `writes_total` tells when it has wrapped */
#define NAME_MAX_BYTES 96

struct clock_lock { /* 0, 0: not locked */
    uint32_t min_mhz;
    uint32_t max_mhz;
};

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
    uint64_t set_latency_ns;

    /* Set by tests and by clients. */
    double load; /* 0 idle .. 1 busy */
    uint64_t memory_used_bytes;
    uint32_t mig_enabled;
    uint32_t persistence;
    uint32_t limit_mw;
    uint32_t limit_out_of_band_mw; /* 0: none; lowers the enforced limit */
    struct clock_lock lock;        /* as last written */
    struct clock_lock lock_before; /* in force until lock_at_ns */
    uint64_t lock_at_ns;
    struct clock_lock memory_lock; /* recorded, without effect */

    /* Brought up to date by each call. */
    uint64_t updated_ns;
    double energy_mj;         /* exact */
    double energy_visible_mj; /* as of the last whole 100 ms */
    double power_average_w;
    double temperature_celsius;
};

struct hook { /* a rule that makes calls fail, stall or both */
    char function[NAME_MAX_BYTES]; /* a C symbol, "field:186", or "*"; empty: unused */
    int32_t gpu;                   /* -1: every GPU, and calls that name none */
    int32_t code;
    int64_t skip;  /* calls to let through first */
    int64_t count; /* calls to hit after those; -1: all */
    int64_t delay_ms; /* before the answer; -1: hangs */
};

struct write_record {
    uint64_t at_ns;
    uint32_t pid;
    int32_t gpu;
    char function[NAME_MAX_BYTES];
    uint32_t arguments[2];
    int32_t code;
    uint32_t reserved;
};

struct state {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t gpu_count;
    uint32_t permission;   /* 0 everybody may write, 1 nobody, 2 who has CAP_SYS_ADMIN */
    int64_t clock_skew_ns; /* added to the time; tests advance it instead of waiting */
    uint64_t writes_total;
    struct hook hooks[HOOKS_MAX];
    struct gpu_state gpus[GPUS_MAX];
    struct write_record writes[WRITES_MAX];
};

/* Maps the file named by JOULECUT_FAKE_NVML_STATE. 0, or -1 where there is no such state. */
int state_open(void);

/* Takes the state, or NULL before state_open. Never held across a delay. */
struct state *state_take(void);
void state_give(void);

uint64_t state_now_ns(const struct state *state);

/* Brings clocks, energy and temperature of a GPU up to `now_ns`. */
void physics_advance(struct gpu_state *gpu, uint64_t now_ns);
uint32_t physics_clock_mhz(const struct gpu_state *gpu, uint64_t now_ns);
double physics_power_w(const struct gpu_state *gpu, uint64_t now_ns);
uint32_t physics_cap_mhz(const struct gpu_state *gpu); /* what the power limit allows */
uint32_t physics_limit_mw(const struct gpu_state *gpu); /* the enforced limit */
void physics_lock(struct gpu_state *gpu, struct clock_lock lock, uint64_t now_ns);

#endif
