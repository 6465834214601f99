export function useState<T>(first: T | (() => T)): [T, (next: T | ((last: T) => T)) => void];
export function useEffect(effect: () => void | (() => void), inputs?: any[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: any[]): void;
export function useRef<T>(first: T): { current: T };
export function useMemo<T>(make: () => T, inputs?: any[]): T;
export function useCallback<T extends Function>(fn: T, inputs?: any[]): T;
export function useId(): string;
export function useErrorBoundary(callback?: (error: any) => void): [any, () => void];
