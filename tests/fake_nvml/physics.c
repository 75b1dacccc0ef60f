/* What a GPU does between two calls: P = P0 + load*c*f*V(f)^2, held under the power limit.
 *
 * V is 1 below the knee and rises linearly above it. Power is constant between events (load,
 * lock, limit), so energy needs no ticking: it is brought up to date when somebody looks.
 */
#include "state.h"

#include <math.h>
#include <string.h>

#define COUNTER_STEP_NS 100000000ULL /* boards update the energy counter about every 100 ms */
#define AVERAGE_S 1.0                /* time constant that stands for the 1 s average */
#define AMBIENT_CELSIUS 28.0
#define CELSIUS_PER_W 0.1 /* 400 W settles at 68 degrees */
#define THERMAL_S 20.0

static double busy_power_w(const struct gpu_state *gpu, uint32_t clock_mhz)
{
    double ghz = clock_mhz / 1000.0;
    double volts = 1.0 + gpu->volts_per_ghz * fmax(0.0, ghz - gpu->knee_ghz);
    return gpu->static_w + gpu->load * gpu->dynamic_w_per_ghz * ghz * volts * volts;
}

uint32_t physics_limit_mw(const struct gpu_state *gpu)
{
    if (gpu->limit_out_of_band_mw != 0 && gpu->limit_out_of_band_mw < gpu->limit_mw)
        return gpu->limit_out_of_band_mw;
    return gpu->limit_mw;
}

uint32_t physics_cap_mhz(const struct gpu_state *gpu)
{
    double limit_w = physics_limit_mw(gpu) / 1000.0;
    for (uint32_t i = gpu->clock_count; i > 1; i--)
        if (busy_power_w(gpu, gpu->clocks_mhz[i - 1]) <= limit_w)
            return gpu->clocks_mhz[i - 1];
    return gpu->clocks_mhz[0];
}

static struct clock_lock lock_in_force(const struct gpu_state *gpu, uint64_t now_ns)
{
    return now_ns < gpu->lock_at_ns ? gpu->lock_before : gpu->lock;
}

uint32_t physics_clock_mhz(const struct gpu_state *gpu, uint64_t now_ns)
{
    struct clock_lock lock = lock_in_force(gpu, now_ns);
    if (gpu->load <= 0.0)
        return gpu->idle_clock_mhz > lock.min_mhz ? gpu->idle_clock_mhz : lock.min_mhz;
    uint32_t wanted = lock.max_mhz ? lock.max_mhz : gpu->clocks_mhz[gpu->clock_count - 1];
    uint32_t allowed = physics_cap_mhz(gpu); /* the limit beats the lock, its minimum too */
    return wanted < allowed ? wanted : allowed;
}

double physics_power_w(const struct gpu_state *gpu, uint64_t now_ns)
{
    if (gpu->load <= 0.0)
        return gpu->idle_w;
    return busy_power_w(gpu, physics_clock_mhz(gpu, now_ns));
}

static void advance_steady(struct gpu_state *gpu, uint64_t now_ns)
{
    double seconds = (double)(now_ns - gpu->updated_ns) / 1e9;
    double power_w = physics_power_w(gpu, gpu->updated_ns);
    uint64_t step_ns = now_ns - now_ns % COUNTER_STEP_NS;
    if (step_ns > gpu->updated_ns)
        gpu->energy_visible_mj =
            gpu->energy_mj + power_w * (double)(step_ns - gpu->updated_ns) / 1e6;
    gpu->energy_mj += power_w * seconds * 1e3;
    gpu->power_average_w += (power_w - gpu->power_average_w) * -expm1(-seconds / AVERAGE_S);
    double settled = AMBIENT_CELSIUS + CELSIUS_PER_W * power_w;
    gpu->temperature_celsius +=
        (settled - gpu->temperature_celsius) * -expm1(-seconds / THERMAL_S);
    gpu->updated_ns = now_ns;
}

void physics_advance(struct gpu_state *gpu, uint64_t now_ns)
{
    if (gpu->updated_ns < gpu->lock_at_ns && gpu->lock_at_ns < now_ns)
        advance_steady(gpu, gpu->lock_at_ns);
    if (gpu->updated_ns < now_ns)
        advance_steady(gpu, now_ns);
}

void physics_lock(struct gpu_state *gpu, struct clock_lock lock, uint64_t now_ns)
{
    physics_advance(gpu, now_ns);
    gpu->lock_before = lock_in_force(gpu, now_ns);
    gpu->lock = lock;
    gpu->lock_at_ns = now_ns + gpu->set_latency_ns;
}
