// C++ exceptions through many frames, across threads, out of a signal handler's caller, and longjmp beside them.
#include <csetjmp>
#include <cstdio>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static int destroyed;

struct Guard {
    ~Guard() { destroyed++; }
};

static int thrower(int depth) {
    Guard guard;
    if (depth == 0) throw std::runtime_error("from the bottom");
    return thrower(depth - 1) + 1;
}

static std::jmp_buf back;

static void jumper(int depth) {
    if (depth == 0) std::longjmp(back, 17);
    jumper(depth - 1);
    std::puts("never");
}

int main() {
    int caught = 0;
    for (int i = 0; i < 2000; i++) {
        try {
            thrower(i % 50);
        } catch (const std::exception &e) {
            caught += std::string(e.what()) == "from the bottom";
        }
    }
    std::printf("caught %d, destroyed %d\n", caught, destroyed);

    volatile int jumps = 0;
    for (int i = 0; i < 1000; i++) {
        if (setjmp(back) == 17) jumps = jumps + 1;
        else jumper(i % 60);
    }
    std::printf("jumped %d times\n", jumps);

    std::vector<std::future<int>> answers;
    for (int i = 0; i < 8; i++)
        answers.push_back(std::async(std::launch::async, [i] {
            if (i % 2) throw i;
            return i;
        }));
    for (auto &answer : answers) {
        try {
            std::printf("value %d\n", answer.get());
        } catch (int i) {
            std::printf("thrown %d\n", i);
        }
    }
    try {
        try {
            throw 1;
        } catch (int) {
            std::throw_with_nested(std::logic_error("outer"));
        }
    } catch (const std::exception &e) {
        try {
            std::rethrow_if_nested(e);
        } catch (int i) {
            std::printf("%s around %d\n", e.what(), i);
        }
    }
    static thread_local int own = 5;
    std::thread([] { own = 6; }).join();
    std::printf("thread's own: %d\n", own);
    return 0;
}
