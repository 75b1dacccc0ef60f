/* What a GPU does between two calls: P = P0 + load*c*f*V(f)^2, held under the power limit.
 *
 * V is 1 below the knee and rises linearly above it. Power is constant between events (load,
 * lock, limit, a temperature crossed), so nothing ticks: it is brought up to date when somebody
 * looks, event by event.
 */
#include "state.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define SAMPLE_STEP_NS 20000000ULL   /* assumed; 128 of them reach back 2.5 s */
#define EVENT_STEP_NS 1000000ULL     /* two temperatures are never crossed closer than that */
#define AVERAGE_S 1.0                /* time constant that stands for the 1 s average */
#define THERMAL_S 20.0
#define COOL_ENOUGH_CELSIUS (SLOWDOWN_CELSIUS - 3.0)
#define MAX_Q_PROFILES ((1U << 1) | (1U << 15) | (1U << 22) | (1U << 23))
#define MAX_Q_LIMIT 0.8  /* assumed: what Max-Q takes of the limit and of the highest clock */
#define MAX_Q_CLOCK 0.85

static double busy_power_w(const struct gpu_state *gpu, uint32_t clock_mhz)
{
    double ghz = clock_mhz / 1000.0;
    double volts = 1.0 + gpu->volts_per_ghz * fmax(0.0, ghz - gpu->knee_ghz);
    return gpu->static_w + gpu->load * gpu->dynamic_w_per_ghz * ghz * volts * volts;
}

uint32_t physics_limit_mw(const struct gpu_state *gpu)
{
    uint32_t limit_mw = gpu->limit_mw;
    uint32_t max_q_mw = (uint32_t)(gpu->limit_default_mw * MAX_Q_LIMIT);
    if (gpu->limit_out_of_band_mw != 0 && gpu->limit_out_of_band_mw < limit_mw)
        limit_mw = gpu->limit_out_of_band_mw;
    if ((gpu->profiles_enforced & MAX_Q_PROFILES) != 0 && max_q_mw < limit_mw)
        limit_mw = max_q_mw;
    return limit_mw;
}

static uint32_t top_mhz(const struct gpu_state *gpu)
{
    return gpu->clocks_mhz[gpu->clock_count - 1];
}

static uint32_t snapped_mhz(const struct gpu_state *gpu, double clock_mhz)
{
    uint32_t best = gpu->clocks_mhz[0];
    for (uint32_t i = 0; i < gpu->clock_count && gpu->clocks_mhz[i] <= clock_mhz; i++)
        best = gpu->clocks_mhz[i];
    return best;
}

/* The highest clock that draws no more than that. */
static uint32_t under_w(const struct gpu_state *gpu, double power_w)
{
    for (uint32_t i = gpu->clock_count; i > 1; i--)
        if (busy_power_w(gpu, gpu->clocks_mhz[i - 1]) <= power_w)
            return gpu->clocks_mhz[i - 1];
    return gpu->clocks_mhz[0];
}

static struct clock_lock lock_in_force(const struct gpu_state *gpu, uint64_t now_ns)
{
    return now_ns < gpu->lock_at_ns ? gpu->lock_before : gpu->lock;
}

/* The clock that a lock at a listed clock gives: itself, or the one below a hole. */
static uint32_t reached_mhz(const struct gpu_state *gpu, uint32_t clock_mhz)
{
    uint32_t best = gpu->clocks_mhz[0];
    for (uint32_t i = 0; i < gpu->clock_count && gpu->clocks_mhz[i] <= clock_mhz; i++)
        if (!(gpu->unreached[i / 32] >> i % 32 & 1))
            best = gpu->clocks_mhz[i];
    return best;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

struct pace { /* the clock of a busy GPU, and why it is no higher */
    uint32_t clock_mhz;
    uint64_t reasons;
};

static struct pace busy_pace(const struct gpu_state *gpu, const struct motion *motion,
                             uint64_t now_ns)
{
    struct clock_lock lock = lock_in_force(gpu, now_ns);
    uint32_t top = top_mhz(gpu), clock = lock.max_mhz ? reached_mhz(gpu, lock.max_mhz) : top;
    uint32_t cap = under_w(gpu, physics_limit_mw(gpu) / 1000.0);
    uint64_t reasons = 0;
    if (gpu->clock_ceiling_mhz != 0)
        clock = least(clock, snapped_mhz(gpu, gpu->clock_ceiling_mhz));
    if ((gpu->profiles_enforced & MAX_Q_PROFILES) != 0)
        clock = least(clock, snapped_mhz(gpu, top * MAX_Q_CLOCK));
    if (gpu->application_mhz != 0 && gpu->application_mhz <= clock) {
        clock = gpu->application_mhz;
        reasons |= 1ULL << REASON_APPLICATION_CLOCKS;
    }
    if (motion->too_warm) {
        double bearable_w = (SLOWDOWN_CELSIUS - gpu->ambient_celsius) / gpu->celsius_per_w;
        clock = least(clock, under_w(gpu, bearable_w));
        reasons |= 1ULL << REASON_SW_THERMAL;
    }
    if (gpu->power_brake) {
        clock = least(clock, snapped_mhz(gpu, top * 0.5));
        reasons |= 1ULL << REASON_POWER_BRAKE | 1ULL << REASON_HW_SLOWDOWN;
    }
    if (motion->too_hot) {
        clock = gpu->clocks_mhz[0];
        reasons |= 1ULL << REASON_HW_THERMAL | 1ULL << REASON_HW_SLOWDOWN;
    }
    if (cap < top && cap <= clock) { /* the limit beats the lock, its minimum too */
        clock = cap;
        reasons |= 1ULL << REASON_POWER_CAP;
    }
    return (struct pace){clock, reasons};
}

static uint32_t clock_of(const struct gpu_state *gpu, const struct motion *motion, uint64_t now_ns)
{
    if (gpu->load > 0.0)
        return busy_pace(gpu, motion, now_ns).clock_mhz;
    uint32_t min_mhz = reached_mhz(gpu, lock_in_force(gpu, now_ns).min_mhz);
    return gpu->idle_clock_mhz > min_mhz ? gpu->idle_clock_mhz : min_mhz;
}

static double power_of(const struct gpu_state *gpu, const struct motion *motion, uint64_t now_ns)
{
    return gpu->load > 0.0 ? busy_power_w(gpu, clock_of(gpu, motion, now_ns)) : gpu->idle_w;
}

static uint64_t reasons_of(const struct gpu_state *gpu, const struct motion *motion,
                           uint64_t now_ns)
{
    return gpu->load > 0.0 ? busy_pace(gpu, motion, now_ns).reasons : 1ULL << REASON_IDLE;
}

const struct motion *physics_motion(const struct gpu_state *gpu)
{
    return &gpu->motion[gpu->motion_now & 1];
}

uint32_t physics_clock_mhz(const struct gpu_state *gpu, uint64_t now_ns)
{
    return clock_of(gpu, physics_motion(gpu), now_ns);
}

double physics_power_w(const struct gpu_state *gpu, uint64_t now_ns)
{
    return power_of(gpu, physics_motion(gpu), now_ns);
}

uint64_t physics_reasons(const struct gpu_state *gpu, uint64_t now_ns)
{
    return reasons_of(gpu, physics_motion(gpu), now_ns);
}

/* ---- the passing of time ----------------------------------------------------------------- */

static void take_samples(struct gpu_state *gpu, struct motion *motion, uint64_t until_ns)
{
    uint64_t first_ns = motion->updated_ns - motion->updated_ns % SAMPLE_STEP_NS + SAMPLE_STEP_NS;
    if (first_ns > until_ns)
        return;
    uint64_t count = (until_ns - first_ns) / SAMPLE_STEP_NS + 1;
    uint64_t skipped = count > SAMPLES_MAX ? count - SAMPLES_MAX : 0;
    struct sample sample = {
        .power_mw = (uint32_t)(power_of(gpu, motion, motion->updated_ns) * 1e3),
        .clock_mhz = clock_of(gpu, motion, motion->updated_ns),
        .busy_percent = (uint32_t)(gpu->load * 100.0 + 0.5),
        .memory_mhz = gpu->memory_clocks_mhz[gpu->memory_clock_count - 1],
    };
    motion->samples_total += skipped;
    for (uint64_t i = skipped; i < count; i++) {
        sample.at_ns = first_ns + i * SAMPLE_STEP_NS;
        gpu->samples[motion->samples_total++ % SAMPLES_MAX] = sample;
    }
}

/* A stretch in which nothing changes. */
static void advance_steady(struct gpu_state *gpu, struct motion *motion, uint64_t until_ns)
{
    uint64_t from_ns = motion->updated_ns;
    double seconds = (double)(until_ns - from_ns) / 1e9;
    double power_w = power_of(gpu, motion, from_ns);
    uint64_t reasons = reasons_of(gpu, motion, from_ns);
    uint64_t step_ns = until_ns - until_ns % gpu->counter_step_ns;
    double counted_w = power_w + (gpu->counts_module ? gpu->module_w : 0.0);
    take_samples(gpu, motion, until_ns);
    if (step_ns > from_ns)
        motion->energy_visible_mj =
            motion->energy_mj + counted_w * (double)(step_ns - from_ns) / 1e6;
    motion->energy_mj += counted_w * seconds * 1e3;
    motion->power_average_w += (power_w - motion->power_average_w) * -expm1(-seconds / AVERAGE_S);
    double settled = gpu->ambient_celsius + gpu->celsius_per_w * power_w;
    motion->temperature_celsius +=
        (settled - motion->temperature_celsius) * -expm1(-seconds / THERMAL_S);
    for (int i = 0; i < REASONS; i++)
        if (reasons >> i & 1)
            motion->reason_ns[i] += until_ns - from_ns;
    motion->nvlink_tx_bytes += gpu->nvlink_tx_bytes_per_s * seconds;
    motion->nvlink_rx_bytes += gpu->nvlink_rx_bytes_per_s * seconds;
    motion->pcie_tx_bytes += gpu->pcie_tx_bytes_per_s * seconds;
    motion->pcie_rx_bytes += gpu->pcie_rx_bytes_per_s * seconds;
    motion->updated_ns = until_ns;
}

/* Nanoseconds until the temperature crosses a mark on its way to where it settles; or never. */
static uint64_t crossing_ns(double now, double settled, double mark)
{
    if ((now < mark) == (settled < mark))
        return UINT64_MAX;
    double seconds = THERMAL_S * log((settled - now) / (settled - mark));
    return seconds < 1e9 ? (uint64_t)(seconds * 1e9) : UINT64_MAX;
}

static void switch_thermal(struct motion *motion)
{
    double celsius = motion->temperature_celsius;
    motion->too_warm = motion->too_warm ? celsius > COOL_ENOUGH_CELSIUS
                                        : celsius >= SLOWDOWN_CELSIUS;
    motion->too_hot = motion->too_hot ? celsius > SLOWDOWN_CELSIUS : celsius >= HOT_CELSIUS;
}

static void advance_warming(struct gpu_state *gpu, struct motion *motion, uint64_t until_ns)
{
    const double marks[] = {COOL_ENOUGH_CELSIUS, SLOWDOWN_CELSIUS, HOT_CELSIUS};
    for (int crossed = 0; crossed < 1000 && motion->updated_ns < until_ns; crossed++) {
        double power_w = power_of(gpu, motion, motion->updated_ns);
        double settled = gpu->ambient_celsius + gpu->celsius_per_w * power_w;
        uint64_t left_ns = until_ns - motion->updated_ns;
        for (int i = 0; i < 3; i++) {
            uint64_t at_ns = crossing_ns(motion->temperature_celsius, settled, marks[i]);
            if (at_ns < left_ns && at_ns + EVENT_STEP_NS < left_ns)
                left_ns = at_ns + EVENT_STEP_NS; /* just behind the mark, whatever is rounded */
        }
        advance_steady(gpu, motion, motion->updated_ns + left_ns);
        switch_thermal(motion);
    }
    if (motion->updated_ns < until_ns)
        advance_steady(gpu, motion, until_ns);
}

void physics_advance(struct gpu_state *gpu, uint64_t now_ns)
{
    struct motion next = *physics_motion(gpu);
    if (next.updated_ns >= now_ns)
        return;
    if (next.updated_ns < gpu->lock_at_ns && gpu->lock_at_ns < now_ns)
        advance_warming(gpu, &next, gpu->lock_at_ns);
    advance_warming(gpu, &next, now_ns);
    uint32_t other = ~gpu->motion_now & 1;
    gpu->motion[other] = next;
    atomic_signal_fence(memory_order_seq_cst); /* killed before this: nothing has happened */
    *(volatile uint32_t *)&gpu->motion_now = other;
}

void physics_lock(struct gpu_state *gpu, struct clock_lock lock, uint64_t now_ns)
{
    physics_advance(gpu, now_ns);
    gpu->lock_before = lock_in_force(gpu, now_ns);
    gpu->lock = lock;
    gpu->lock_at_ns = now_ns + gpu->set_latency_ns;
}

void physics_forget(struct gpu_state *gpu, uint64_t now_ns)
{
    physics_advance(gpu, now_ns);
    gpu->lock = gpu->lock_before = gpu->memory_lock = (struct clock_lock){0, 0};
    gpu->lock_at_ns = 0;
    gpu->limit_mw = gpu->limit_default_mw;
    gpu->application_mhz = 0;
    gpu->profiles_requested = gpu->profiles_enforced = 0;
}
